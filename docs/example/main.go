// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Command example is Prebind with two more plugins.
package main

import (
	"fmt"
	"os"

	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/prebind/prebind/cmd/prebind/app"
	"github.com/prebind/prebind/docs/example/after"
	"github.com/prebind/prebind/docs/example/nodelock"
)

func main() {
	command := app.NewCommand(app.WithPlugin(nodelock.Registration()), app.WithPlugin(after.Registration()))
	if err := command.ExecuteContext(ctrl.SetupSignalHandler()); err != nil {
		if text := err.Error(); text != "" {
			fmt.Fprintln(os.Stderr, "error:", text)
		}
		os.Exit(app.ExitCode(err))
	}
}
