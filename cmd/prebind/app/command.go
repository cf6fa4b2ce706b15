// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package app implements the commands of prebind and their flags. It also defines the list of
// registered mutators and PreBind plugins.
package app

import (
	"github.com/spf13/cobra"

	"github.com/prebind/prebind/cmd/internal/cli"
)

// Run runs the command prebind with the flags of the process, and returns the exit code. Options add mutators and plugins, so that you can build a
// program with your own.
func Run(options ...Option) int { return cli.Run(NewCommand(options...)) }

// NewCommand returns the command of Run. Each error of the command is one line. The caller prints it. The command never exits the
// process.
func NewCommand(options ...Option) *cobra.Command {
	registry := newRegistry(options...)
	root := &cobra.Command{
		Use:   "prebind",
		Short: "Mutators and PreBind plugins for every Kubernetes scheduler",
		Long: `Prebind is a mutating admission webhook for Bindings. It runs between a
scheduler's decision and the API server's bind.

Mutators add annotations and labels about the node to the pod. PreBind plugins
prepare what the pod needs on the node, such as volumes and devices, and wait
until it is ready. Then the API server binds the pod. Schedulers need no change.`,
		PersistentPreRunE: func(*cobra.Command, []string) error { return registry.Check() },
	}
	root.AddCommand(newServeCommand(registry), newPluginsCommand(registry), newConfigCommand(registry), cli.NewUnregisterCommand(), cli.NewVersionCommand())
	cli.Configure(root)
	return root
}
