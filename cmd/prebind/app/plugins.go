// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/prebind/prebind/config/v1alpha1"
	"github.com/prebind/prebind/internal/configuration"
)

func newPluginsCommand(r *configuration.Registry) *cobra.Command {
	return &cobra.Command{
		Use:   "plugins",
		Short: "List the mutators and PreBind plugins in the order in which they run",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 3, ' ', 0)
			fmt.Fprintln(w, "NAME\tTYPE\tDEFAULT\tANNOTATIONS\tDESCRIPTION")
			for _, m := range r.Mutators {
				fmt.Fprintf(w, "%s\tmutator\t%s\t%s.%s/…\t%s\n", m.Name, onOff(m.On), m.Name, v1alpha1.Domain, m.Description)
			}
			for _, p := range r.Plugins {
				reads := "-"
				if p.AnnotationsHelp != "" {
					reads = fmt.Sprintf("%s.%s/{%s}", p.Name, v1alpha1.Domain, p.AnnotationsHelp)
				}
				fmt.Fprintf(w, "%s\tPreBind\t%s\t%s\t%s\n", p.Name, onOff(p.On), reads, p.Description)
			}
			return w.Flush()
		},
	}
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}
