// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"slices"

	"github.com/spf13/pflag"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Client connects a command to the cluster like kubectl, also from within a pod.
type Client struct {
	rules     *clientcmd.ClientConfigLoadingRules
	overrides clientcmd.ConfigOverrides
}

// shownFlags are the connection flags in the help of each command. 'kubectl options' describes all of them.
func shownFlags() []string { return []string{"as", "context", "kubeconfig", "namespace"} }

// AddFlags adds the flags of kubectl, such as --kubeconfig, --context, --namespace and
// --as, except those that the command defines itself.
func (c *Client) AddFlags(fs *pflag.FlagSet) {
	connection := pflag.NewFlagSet("connection", pflag.ContinueOnError)
	c.rules = clientcmd.NewDefaultClientConfigLoadingRules()
	connection.StringVar(&c.rules.ExplicitPath, "kubeconfig", "",
		"Path to a kubeconfig file. By default, the file that kubectl uses or, in a pod, the service account. 'kubectl options' lists more flags for the connection.")
	clientcmd.BindOverrideFlags(&c.overrides, connection, clientcmd.RecommendedConfigOverrideFlags(""))
	connection.VisitAll(func(f *pflag.Flag) { f.Hidden = !slices.Contains(shownFlags(), f.Name) })
	fs.AddFlagSet(connection)
}

// Connection is what the flags of a Client select.
type Connection struct {
	kubernetes.Interface
	Config    *rest.Config
	Namespace string
}

// Connect returns a client with its configuration and the namespace. It does not contact the API server.
func (c *Client) Connect() (*Connection, error) {
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(c.rules, &c.overrides)
	config, err := loader.ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, fmt.Errorf("no kubeconfig: set --kubeconfig or the environment variable %s to a kubeconfig file, or create the default %s",
			clientcmd.RecommendedConfigPathEnvVar, clientcmd.RecommendedHomeFile)
	}
	if err != nil {
		return nil, fmt.Errorf("client configuration: %w", err)
	}
	namespace, _, err := loader.Namespace()
	if err != nil {
		return nil, fmt.Errorf("client configuration: namespace: %w", err)
	}
	config.UserAgent = UserAgent()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("setting up a client: %w", err)
	}
	return &Connection{Interface: client, Config: config, Namespace: namespace}, nil
}
