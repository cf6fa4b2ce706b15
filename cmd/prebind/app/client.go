// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"
)

// userClient connects the commands for users to the cluster like kubectl, also
// from within a pod.
type userClient struct {
	rules     *clientcmd.ClientConfigLoadingRules
	overrides clientcmd.ConfigOverrides
}

// shownFlags are the connection flags in the help of each command. 'prebind options' prints all of them.
func shownFlags() []string { return []string{"as", "context", "kubeconfig", "namespace"} }

// addFlags adds the flags of kubectl, such as --kubeconfig, --context, --namespace and
// --as, except those to omit. Only --namespace, --username and --password can be omitted.
func (u *userClient) addFlags(fs *pflag.FlagSet, omit ...string) {
	if fs.Lookup("namespace") != nil {
		omit = append(omit, "namespace") // Commands define their own flag.
	}
	connection := u.connectionFlags(omit...)
	connection.VisitAll(func(f *pflag.Flag) { f.Hidden = !slices.Contains(shownFlags(), f.Name) })
	connection.Lookup("kubeconfig").Usage += " 'prebind options' lists more flags for the connection."
	fs.AddFlagSet(connection)
}

func (u *userClient) connectionFlags(omit ...string) *pflag.FlagSet {
	fs := pflag.NewFlagSet("connection", pflag.ContinueOnError)
	u.rules = clientcmd.NewDefaultClientConfigLoadingRules()
	fs.StringVar(&u.rules.ExplicitPath, "kubeconfig", "", "Path to a kubeconfig file. By default, the file that kubectl uses or, in a pod, the service account.")
	flags := clientcmd.RecommendedConfigOverrideFlags("")
	for _, f := range []*clientcmd.FlagInfo{&flags.ContextOverrideFlags.Namespace, &flags.AuthOverrideFlags.Username, &flags.AuthOverrideFlags.Password} {
		if slices.Contains(omit, f.LongName) {
			f.LongName = ""
		}
	}
	clientcmd.BindOverrideFlags(&u.overrides, fs, flags)
	return fs
}

func newOptionsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "options",
		Short: "Print the flags for the connection to the API server",
		Long:  "Print the flags for the connection to the API server, which are those of kubectl.\nexplain, status, conformance and unregister have them.",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprint(cmd.OutOrStdout(), new(userClient).connectionFlags().FlagUsages())
			return err
		},
	}
}

// config returns the client configuration and the namespace.
func (u *userClient) config() (*rest.Config, string, error) {
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(u.rules, &u.overrides)
	config, err := loader.ClientConfig()
	if err != nil {
		return nil, "", fmt.Errorf("client configuration: %w", err)
	}
	namespace, _, err := loader.Namespace()
	if err != nil {
		return nil, "", fmt.Errorf("client configuration: namespace: %w", err)
	}
	config.UserAgent = userAgent()
	return config, namespace, nil
}

// format is the value of -o.
type format string

const (
	formatText format = "text"
	formatJSON format = "json"
	formatYAML format = "yaml"
)

// addFlag adds -o.
func (f *format) addFlag(fs *pflag.FlagSet) {
	*f = formatText
	fs.StringVarP((*string)(f), "output", "o", string(*f), "Output format: text, json or yaml.")
}

// validate returns an error for an unknown format.
func (f format) validate() error {
	switch f {
	case formatText, formatJSON, formatYAML:
		return nil
	default:
		return fmt.Errorf("--output: must be %s, %s or %s, got %q", formatText, formatJSON, formatYAML, f)
	}
}

// write writes the value in the format. It calls text for the text format.
func (f format) write(out io.Writer, value any, text func(io.Writer) error) error {
	if f == formatText {
		return text(out)
	}
	encoded, err := json.MarshalIndent(value, "", "  ")
	encoded = append(encoded, '\n')
	if f == formatYAML {
		encoded, err = yaml.Marshal(value)
	}
	if err == nil {
		_, err = out.Write(encoded)
	}
	return err
}

// exitError ends the program with an exit code other than 1. Its text can be empty.
type exitError struct {
	code int
	err  error
}

// Error implements error.
func (e exitError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

// Unwrap returns the cause, if any.
func (e exitError) Unwrap() error { return e.err }

// ExitCode returns the exit code for an error of NewCommand. The text of the error is for
// the user, and can be empty.
func ExitCode(err error) int {
	var exit exitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.code
	default:
		return 1
	}
}

// oneLine returns an error with all problems in one line, or nil if there are none.
func oneLine(problems []error) error {
	if err := errors.Join(problems...); err != nil {
		return errors.New(strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return nil
}
