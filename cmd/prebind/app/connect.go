// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"fmt"
	"net"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/prebind/prebind/apiclient"
)

// listeners are the open addresses. Those that are switched off are nil.
type listeners struct{ webhook, probes, debug net.Listener }

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
	open(&l.debug, "debug-bind-address", o.debug.address)
	if len(problems) > 0 {
		l.close()
		return nil, errors.Join(problems...)
	}
	return l, nil
}

// close closes those that are open. A server that ran has closed its own.
func (l *listeners) close() {
	for _, one := range []net.Listener{l.webhook, l.probes, l.debug} {
		if one != nil {
			_ = one.Close()
		}
	}
}

// restConfig returns the client configuration of the kubeconfig or, without one, of the
// pod's service account.
func restConfig(kubeconfig string, health *apiclient.Health) (*rest.Config, error) {
	var config *rest.Config
	var err error
	if kubeconfig == "" {
		if config, err = rest.InClusterConfig(); err != nil {
			return nil, fmt.Errorf("--kubeconfig is not given, and there is no pod's way to the API server: %w", err)
		}
	} else if config, err = clientcmd.BuildConfigFromFlags("", kubeconfig); err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	apiclient.Prepare(config, userAgent(), health)
	return config, nil
}
