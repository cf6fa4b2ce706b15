// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/prebind/prebind/config"
	"github.com/prebind/prebind/internal/configuration"
)

func newConfigCommand(r *configuration.Registry) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Validate a configuration file, or print the default file or its JSON schema",
	}
	cmd.AddCommand(&cobra.Command{
		Use:   "check FILE",
		Short: "Validate a configuration file: print each problem with its field, or a summary",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := configuration.Load(r, args[0], pflag.NewFlagSet("none", pflag.ContinueOnError))
			if err != nil {
				return errors.New(strings.TrimPrefix(err.Error(), "--config: "))
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is valid: %s\n", args[0], c.Summary())
			return err
		},
	}, &cobra.Command{
		Use:   "defaults",
		Short: "Print a configuration file with every field, its default and its description",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			encoded, err := configuration.Default(r).Encode()
			if err == nil {
				_, err = cmd.OutOrStdout().Write(encoded)
			}
			return err
		},
	}, &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON schema of the configuration file",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := cmd.OutOrStdout().Write(config.ConfigurationSchema)
			return err
		},
	})
	return cmd
}
