// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Command kubectl-prebind is the kubectl plugin 'kubectl prebind'. It explains binds, shows the state of Prebind, checks BindPolicies,
// and tests schedulers.
package main

import (
	"os"

	"github.com/prebind/prebind/cmd/internal/cli"
	"github.com/prebind/prebind/cmd/kubectl-prebind/app"
)

func main() { os.Exit(cli.Run(app.NewCommand())) }
