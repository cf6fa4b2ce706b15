// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Command prebind runs an admission webhook for Bindings with mutators and PreBind plugins. It is
// also the command-line tool of the webhook.
package main

import (
	"fmt"
	"os"

	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/prebind/prebind/cmd/prebind/app"
)

func main() {
	if err := app.NewCommand().ExecuteContext(ctrl.SetupSignalHandler()); err != nil {
		if text := err.Error(); text != "" {
			fmt.Fprintln(os.Stderr, "error:", text)
		}
		os.Exit(app.ExitCode(err))
	}
}
