// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package parent ends a process together with the one that started it.
package parent

import (
	"io"
	"os"
)

// ExitEnv names a variable that, when it is 1, makes the process end as soon as
// its standard input does. The parent keeps the write end of that pipe, which the kernel closes when the parent exits, also after kill -9.
const ExitEnv = "PREBIND_EXIT_WITH_PARENT"

// ExitWith watches standard input for the rest of the process's life, if the
// parent asked for it. Call it first thing in main.
func ExitWith() {
	if os.Getenv(ExitEnv) != "1" {
		return
	}
	// Children of this process have their own standard input.
	_ = os.Unsetenv(ExitEnv)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1) //nolint:forbidigo // the parent has exited
	}()
}
