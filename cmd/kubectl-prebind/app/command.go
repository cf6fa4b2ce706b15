// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package app implements the commands of kubectl-prebind. They are clients of the API server, or need no cluster.
package app

import (
	"github.com/spf13/cobra"

	"github.com/prebind/prebind/cmd/internal/cli"
)

// NewCommand returns the command 'kubectl prebind'. Each error of the command is one line. The caller prints it. The command never
// exits the process.
func NewCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "kubectl-prebind",
		Short: "Explain and inspect the binds of pods with Prebind",
		Long: `Explain and inspect the binds of pods with Prebind.

explain, status, top, conformance and unregister connect to the cluster like kubectl.
policy needs no cluster.`,
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl prebind"},
	}
	root.AddCommand(newExplainCommand(), newStatusCommand(), newTopCommand(), newPolicyCommand(), newConformanceCommand(), cli.NewUnregisterCommand(),
		cli.NewVersionCommand())
	cli.Configure(root)
	return root
}
