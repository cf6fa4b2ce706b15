// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package cluster

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

func lockFile(file *os.File, shared bool) error {
	how := syscall.LOCK_EX
	if shared {
		how = syscall.LOCK_SH
	}
	err := syscall.Flock(int(file.Fd()), how|syscall.LOCK_NB)
	switch {
	case errors.Is(err, syscall.EWOULDBLOCK):
		return errLocked
	case err != nil:
		return fmt.Errorf("lock %s: %w", file.Name(), err)
	}
	return nil
}
