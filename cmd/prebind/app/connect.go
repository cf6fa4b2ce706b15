// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	// answerTakes is longer than the API server gives any request but a watch itself,
	// 60 s: what has no answer by then never gets one.
	answerTakes = 70 * time.Second
	// renewalTakes is half of what the election gives a renewal, so that there is a
	// second try, and far less than other replicas wait for one.
	renewalTakes = renewDeadline / 2
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
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return impatient{next: next, takes: answerTakes} })
	return config, nil
}

// leaseClient is for leases only. A renewal that gets no answer must end soon, or the
// lease would be lost to it; and no watch would live that long.
func leaseClient(config *rest.Config, takes time.Duration) (kubernetes.Interface, error) {
	soon := rest.CopyConfig(config)
	soon.Timeout = takes
	client, err := kubernetes.NewForConfig(soon)
	if err != nil {
		return nil, fmt.Errorf("setting up: %w", err)
	}
	return client, nil
}

// impatient gives up requests that get no answer. Some callers never would, such as
// client-go's recorder of events. A timeout of the client itself would end watches, too.
type impatient struct {
	next  http.RoundTripper
	takes time.Duration
}

// RoundTrip implements http.RoundTripper.
func (i impatient) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Query().Has("watch") {
		return i.next.RoundTrip(r)
	}
	ctx, cancel := context.WithTimeout(r.Context(), i.takes)
	response, err := i.next.RoundTrip(r.WithContext(ctx))
	if err != nil {
		if ctx.Err() != nil && r.Context().Err() == nil {
			err = fmt.Errorf("the API server has not answered within %s: %w", i.takes, err)
		}
		cancel()
		return nil, err
	}
	response.Body = timed{ReadCloser: response.Body, over: cancel}
	return response, nil
}

// WrappedRoundTripper lets client-go find the transport, to end its idle connections.
func (i impatient) WrappedRoundTripper() http.RoundTripper { return i.next }

// timed is a body whose time is over when it is closed.
type timed struct {
	io.ReadCloser
	over context.CancelFunc
}

// Close implements io.Closer.
func (t timed) Close() error {
	defer t.over()
	return t.ReadCloser.Close()
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
