// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package app implements the commands of prebind and their flags. It also defines the list of
// registered mutators and PreBind plugins.
package app

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	cliflag "k8s.io/component-base/cli/flag"
)

// NewCommand returns the command prebind. Options add mutators and plugins, so that you can build a
// program with your own. Each error of the command is one line. The caller prints it. The command
// never exits the process.
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
		SilenceUsage:       true,
		SilenceErrors:      true,
		DisableSuggestions: true, // Suggestions would add lines to an error.
		PersistentPreRunE:  func(*cobra.Command, []string) error { return registry.Check() },
		CompletionOptions:  cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	if strings.HasPrefix(filepath.Base(os.Args[0]), "kubectl-") {
		// The program runs as a kubectl plugin.
		root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl prebind"}
	}
	root.SetGlobalNormalizationFunc(cliflag.WordSepNormalizeFunc)
	root.AddCommand(newServeCommand(registry), newPluginsCommand(registry), newConfigCommand(registry), newExplainCommand(), newStatusCommand(),
		newPolicyCommand(), newConformanceCommand(), newUnregisterCommand(), newOptionsCommand(), newVersionCommand())
	return root
}
