// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// firstContact is how long the API server may take to answer at the start.
const firstContact = 10 * time.Second

// listeners are the open addresses. Those that are switched off are nil.
type listeners struct{ webhook, probes, metrics, debug net.Listener }

// listen opens all addresses, or none.
func (o *serveOptions) listen(ctx context.Context) (*listeners, error) {
	l := &listeners{}
	var problems []error
	open := func(to *net.Listener, flag, address string) {
		if address == "" || address == "0" || len(problems) > 0 {
			return
		}
		var err error
		if *to, err = (&net.ListenConfig{}).Listen(ctx, "tcp", address); err != nil {
			problems = append(problems, fmt.Errorf("--%s: %w", flag, err))
		}
	}
	open(&l.webhook, "webhook-bind-address", o.webhookAddress)
	open(&l.probes, "health-probe-bind-address", o.healthAddress)
	open(&l.metrics, "metrics-bind-address", o.metricsAddress)
	open(&l.debug, "debug-bind-address", o.debug.address)
	if len(problems) > 0 {
		l.close()
		return nil, errors.Join(problems...)
	}
	return l, nil
}

// close closes those that are open. A server that ran has closed its own.
func (l *listeners) close() {
	for _, one := range []net.Listener{l.webhook, l.probes, l.metrics, l.debug} {
		if one != nil {
			_ = one.Close()
		}
	}
}

// restConfig leads to the API server by the kubeconfig or, without one, from
// within a pod.
func restConfig(kubeconfig string) (*rest.Config, error) {
	var config *rest.Config
	var err error
	if kubeconfig == "" {
		if config, err = rest.InClusterConfig(); err != nil {
			return nil, fmt.Errorf("--kubeconfig is not given, and there is no pod's way to the API server: %w", err)
		}
	} else if config, err = clientcmd.BuildConfigFromFlags("", kubeconfig); err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	// The API server's priority and fairness is the limit, not a second one here.
	config.QPS = -1
	config.UserAgent = "prebind/" + version
	return config, nil
}

// contact fails when the API server does not answer.
func contact(config *rest.Config) error {
	reach, err := reacher(config, firstContact)
	if err == nil {
		err = reach()
	}
	if err != nil {
		return fmt.Errorf("the API server at %s does not answer: %w", config.Host, err)
	}
	return nil
}

// reacher returns a function that says why the API server does not answer, within
// the time; it takes no permission.
func reacher(config *rest.Config, within time.Duration) (func() error, error) {
	probe := rest.CopyConfig(config)
	probe.Timeout = within
	client, err := discovery.NewDiscoveryClientForConfig(probe)
	if err != nil {
		return nil, fmt.Errorf("setting up: %w", err)
	}
	return func() error {
		_, err := client.ServerVersion()
		return err
	}, nil
}
