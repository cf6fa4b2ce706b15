// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func newConfigCommand(r *registry) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Check a configuration file, or print one with all defaults, or its JSON schema",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return errors.New("missing subcommand: 'prebind config check FILE', 'prebind config defaults' or 'prebind config schema'")
		},
	}
	cmd.AddCommand(newConfigCheckCommand(r), newConfigDefaultsCommand(r), newConfigSchemaCommand(r))
	return cmd
}

func newConfigCheckCommand(r *registry) *cobra.Command {
	return &cobra.Command{
		Use:   "check FILE",
		Short: "Say what is wrong with a configuration file, line by line, or what it switches on",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := loadConfiguration(r, args[0], pflag.NewFlagSet("none", pflag.ContinueOnError))
			if err != nil {
				return errors.New(strings.TrimPrefix(err.Error(), "--config: "))
			}
			on, err := c.on()
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is valid: mode %s, mutators %s, PreBind plugins %s\n",
				args[0], c.Mode, orNone(on.mutators), orNone(on.plugins))
			return err
		},
	}
}

func newConfigDefaultsCommand(r *registry) *cobra.Command {
	return &cobra.Command{
		Use:   "defaults",
		Short: "Print a configuration file with every field, its default and what it is for",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			encoded, err := encodeDefaults(r)
			if err == nil {
				_, err = cmd.OutOrStdout().Write(encoded)
			}
			return err
		},
	}
}

func encodeDefaults(r *registry) ([]byte, error) {
	s := defaultSettings(r)
	return s.EncodeWithComments(s.usage())
}

func newConfigSchemaCommand(r *registry) *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON schema of the configuration file",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s := defaultSettings(r)
			encoder := json.NewEncoder(cmd.OutOrStdout())
			encoder.SetEscapeHTML(false)
			encoder.SetIndent("", "  ")
			return encoder.Encode(s.Schema(s.usage()))
		},
	}
}

// switchedOn are names, in order.
type switchedOn struct{ mutators, plugins []string }

// on returns what the settings switch on.
func (s *settings) on() (switchedOn, error) {
	mutators, err := s.SelectedMutators()
	if err != nil {
		return switchedOn{}, err
	}
	plugins, err := s.SelectedPlugins()
	return switchedOn{mutators: mutators, plugins: plugins}, err
}

func orNone(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}
