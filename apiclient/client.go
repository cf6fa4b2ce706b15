// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package apiclient is how Prebind reaches the API server: clients that give up on a
// request without an answer, and what the answers say about the API server and about
// Prebind's permissions.
package apiclient

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

const (
	// answerTakes is longer than the API server gives any request but a watch, 60 s. A
	// request without an answer by then never gets one.
	answerTakes = 70 * time.Second
	// firstContact is how long the API server may take to answer at the start.
	firstContact = 10 * time.Second
)

// Prepare sets what every client of this config has in common: no rate limit, because
// the API server's priority and fairness is the limit; a limit on the time of each
// request but watches; and the observation of all answers by health, which may be nil.
func Prepare(config *rest.Config, userAgent string, health *Health) {
	config.QPS = -1
	config.UserAgent = userAgent
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return impatient{next: next, takes: answerTakes} })
	if health != nil {
		config.Wrap(func(next http.RoundTripper) http.RoundTripper { return observed{next: next, health: health} })
	}
}

// NewWithTimeout returns a client whose requests end after the time, watches included.
func NewWithTimeout(config *rest.Config, takes time.Duration) (kubernetes.Interface, error) {
	soon := rest.CopyConfig(config)
	soon.Timeout = takes
	client, err := kubernetes.NewForConfig(soon)
	if err != nil {
		return nil, fmt.Errorf("setting up a client: %w", err)
	}
	return client, nil
}

// Contact returns an error when the API server does not answer within ten seconds. It
// needs no permission.
func Contact(config *rest.Config) error {
	soon := rest.CopyConfig(config)
	soon.Timeout = firstContact
	client, err := discovery.NewDiscoveryClientForConfig(soon)
	if err == nil {
		_, err = client.ServerVersion()
	}
	if err != nil {
		return fmt.Errorf("the API server at %s does not answer: %w", config.Host, err)
	}
	return nil
}

// impatient gives up requests without an answer. Some callers would wait forever, such
// as client-go's recorder of events. A timeout of the client would end watches, too.
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
	response.Body = timed{ReadCloser: response.Body, done: cancel}
	return response, nil
}

// WrappedRoundTripper lets client-go find the transport, to close its idle connections.
func (i impatient) WrappedRoundTripper() http.RoundTripper { return i.next }

// timed is a body that ends its request's context when it is closed.
type timed struct {
	io.ReadCloser
	done context.CancelFunc
}

// Close implements io.Closer.
func (t timed) Close() error {
	defer t.done()
	return t.ReadCloser.Close()
}
