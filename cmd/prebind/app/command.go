// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package app is the program prebind: its commands, their flags, and the one list of
// everything that is compiled in.
package app

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	cliflag "k8s.io/component-base/cli/flag"
)

// NewCommand returns the program. Options add mutators and plugins, so that a program of a
// few lines can bring its own. Its errors are one line each, for main to print. It never
// exits by itself.
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
		DisableSuggestions: true, // Suggestions would be further lines.
		PersistentPreRunE:  func(*cobra.Command, []string) error { return registry.Check() },
		CompletionOptions:  cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	if strings.HasPrefix(filepath.Base(os.Args[0]), "kubectl-") {
		// The program runs as a plugin of kubectl.
		root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl prebind"}
	}
	root.SetGlobalNormalizationFunc(cliflag.WordSepNormalizeFunc)
	root.AddCommand(newServeCommand(registry), newPluginsCommand(registry), newConfigCommand(registry), newExplainCommand(), newStatusCommand(),
		newUnregisterCommand(), newVersionCommand())
	return root
}
