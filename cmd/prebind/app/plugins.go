// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"
)

func newPluginsCommand(r *registry) *cobra.Command {
	return &cobra.Command{
		Use:   "plugins",
		Short: "List the mutators and PreBind plugins that are compiled in, in the order in which they run",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 3, ' ', 0)
			fmt.Fprintln(w, "NAME\tTYPE\tDEFAULT\tANNOTATIONS\tDESCRIPTION")
			for _, s := range r.mutators {
				fmt.Fprintf(w, "%s\tmutator\t%s\t%s.%s/…\t%s\n", s.Name, onOff(s.On), s.Name, defaultDomain, s.Description)
			}
			for _, s := range r.plugins {
				reads := "-"
				if s.Annotations != "" {
					reads = fmt.Sprintf("%s.%s/{%s}", s.Name, defaultDomain, s.Annotations)
				}
				fmt.Fprintf(w, "%s\tPreBind\t%s\t%s\t%s\n", s.Name, onOff(s.On), reads, s.Description)
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
