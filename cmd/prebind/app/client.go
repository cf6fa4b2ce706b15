// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"
)

// userClient is how a command for people reaches the cluster: as kubectl does, also
// from within a pod.
type userClient struct {
	rules     *clientcmd.ClientConfigLoadingRules
	overrides clientcmd.ConfigOverrides
}

// addFlags adds those of kubectl: --kubeconfig, --context, --namespace, --as and the
// like.
func (u *userClient) addFlags(fs *pflag.FlagSet) {
	u.rules = clientcmd.NewDefaultClientConfigLoadingRules()
	fs.StringVar(&u.rules.ExplicitPath, "kubeconfig", "", "Path to a kubeconfig file. By default, the one that kubectl uses or, in a pod, its service account.")
	clientcmd.BindOverrideFlags(&u.overrides, fs, clientcmd.RecommendedConfigOverrideFlags(""))
}

// config returns the way to the API server, and the namespace.
func (u *userClient) config() (*rest.Config, string, error) {
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(u.rules, &u.overrides)
	config, err := loader.ClientConfig()
	if err != nil {
		return nil, "", fmt.Errorf("the way to the API server: %w", err)
	}
	namespace, _, err := loader.Namespace()
	if err != nil {
		return nil, "", fmt.Errorf("the namespace: %w", err)
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
	fs.StringVarP((*string)(f), "output", "o", string(*f), "Format: text, json or yaml.")
}

// write writes the value in the format, or as text writes it.
func (f format) write(out io.Writer, value any, text func(io.Writer) error) error {
	var encoded []byte
	var err error
	switch f {
	case formatText:
		return text(out)
	case formatJSON:
		encoded, err = json.MarshalIndent(value, "", "  ")
		encoded = append(encoded, '\n')
	case formatYAML:
		encoded, err = yaml.Marshal(value)
	default:
		return fmt.Errorf("--output: there is no format %q: the known ones are %s, %s, %s", f, formatText, formatJSON, formatYAML)
	}
	if err == nil {
		_, err = out.Write(encoded)
	}
	return err
}

// exitError ends the program with another code than 1; its text may be empty.
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

// Unwrap returns what is wrong, if anything.
func (e exitError) Unwrap() error { return e.err }

// ExitCode is that of a program that ends with this error of NewCommand. The text of
// the error is for the user, and may be empty.
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
