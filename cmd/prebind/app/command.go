// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package app is the program prebind: its verbs, its flags, and the one list of
// what is compiled in.
package app

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	cliflag "k8s.io/component-base/cli/flag"
)

// version is set by the linker; see the Makefile.
var version = "unknown"

// userAgent is that of all requests to the API server.
func userAgent() string { return "prebind/" + version }

// NewCommand returns the program, with what the options add to it: this is how a
// program of a few lines brings its own plugins. Its errors are one line each,
// for main to print; it never exits by itself.
func NewCommand(options ...Option) *cobra.Command {
	o := defaultServeOptions(options...)
	root := &cobra.Command{
		Use:   "prebind",
		Short: "Mutators and PreBind plugins for every Kubernetes scheduler, at the admission of the Binding",
		Long: `Prebind stands between a scheduler's decision and the API server's bind.

It is a mutating admission webhook for Bindings: mutators tell the pod where it
lands, and PreBind plugins prepare what the pod needs on its node and wait for
it, before the bind may go ahead. Schedulers need not know of it.`,
		SilenceUsage:       true,
		SilenceErrors:      true,
		DisableSuggestions: true, // They would be further lines.
		PersistentPreRunE:  func(*cobra.Command, []string) error { return o.registry.check() },
		CompletionOptions:  cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	if strings.HasPrefix(filepath.Base(os.Args[0]), "kubectl-") {
		// It is called as a plugin of kubectl.
		root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl prebind"}
	}
	root.SetGlobalNormalizationFunc(cliflag.WordSepNormalizeFunc)
	root.AddCommand(newServeCommand(o), newPluginsCommand(o.registry), newConfigCommand(o.registry), newExplainCommand(), newStatusCommand(),
		newUnregisterCommand(), newVersionCommand())
	return root
}

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), version)
			return err
		},
	}
}
