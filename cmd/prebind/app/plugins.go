// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/config/v1alpha1"
	"github.com/prebind/prebind/internal/assembly"
	"github.com/prebind/prebind/internal/configuration"
)

func newPluginsCommand(r *assembly.Registry) *cobra.Command {
	return &cobra.Command{
		Use:   "plugins",
		Short: "List the mutators and PreBind plugins in the order in which they run",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 3, ' ', 0)
			fmt.Fprintln(w, "NAME\tTYPE\tDEFAULT\tANNOTATIONS\tARGUMENTS\tDESCRIPTION")
			arguments := configuration.Default(r.Components()).Arguments
			for _, m := range r.Mutators {
				fmt.Fprintf(w, "%s\tmutator\t%s\t%s.%s/…\t%s\t%s\n", m.Name, onOff(m.On), m.Name, v1alpha1.Domain, fields(arguments.Of(m.Name)), m.Description)
			}
			for _, p := range r.Plugins {
				reads := "-"
				if p.AnnotationsHelp != "" {
					reads = fmt.Sprintf("%s.%s/{%s}", p.Name, v1alpha1.Domain, p.AnnotationsHelp)
				}
				fmt.Fprintf(w, "%s\tPreBind\t%s\t%s\t%s\t%s\n", p.Name, onOff(p.On), reads, fields(arguments.Of(p.Name)), p.Description)
			}
			return w.Flush()
		},
	}
}

// fields returns the fields of the arguments in the configuration file.
func fields(a framework.Arguments) string {
	if a == nil {
		return "-"
	}
	return strings.Join(configuration.Fields(a), ",")
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}
