// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package certificates

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"

	"github.com/prebind/prebind/webhook/certificates/selfmanaged"
)

// Source provides the certificates that Options select. It is a Runnable of a manager: while Start runs, it
// keeps the certificates up to date. Configure and Ready are safe for concurrent use.
type Source struct {
	o      Options
	shared Shared

	getCertificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// clientCAs is nil if every client may call.
	clientCAs func() *x509.CertPool
	// ready is nil if the serving certificate comes from files.
	ready func() error
	runs  []interface {
		Start(ctx context.Context) error
	}
}

// New reads the files that the options name. An error names the flag. For self-managed certificates, call
// Manage before Start.
func New(o Options, shared Shared) (*Source, error) {
	s := &Source{o: o, shared: shared}
	if !o.SelfManaged {
		files, err := NewFiles(o.Dir, shared)
		if err != nil {
			return nil, fmt.Errorf("--cert-dir: %w", err)
		}
		s.getCertificate = files.GetCertificate
		s.runs = append(s.runs, files)
	}
	if o.ClientCAFile != "" {
		clients, err := NewClients(o.ClientCAFile, shared)
		if err != nil {
			return nil, fmt.Errorf("--client-ca-file: %w", err)
		}
		s.clientCAs = clients.Pool
		s.runs = append(s.runs, clients)
	}
	return s, nil
}

// Manage prepares self-managed certificates in the namespace. It does nothing if the options do not select
// them.
func (s *Source) Manage(client kubernetes.Interface, namespace string) error {
	if !s.o.SelfManaged {
		return nil
	}
	m, err := selfmanaged.New(selfmanaged.Options{
		Client:        client,
		Namespace:     namespace,
		Service:       s.o.Service,
		Configuration: s.o.WebhookConfiguration,
		CAValidity:    s.o.CAValidity,
		CertValidity:  s.o.CertValidity,
		Overlap:       s.o.Overlap,
		Clock:         s.shared.Clock,
		Log:           s.shared.Log,
		Metrics:       s.shared.Metrics,
	})
	if err != nil {
		return fmt.Errorf("--self-managed-certs: %w", err)
	}
	s.getCertificate, s.ready = m.GetCertificate, m.Ready
	s.runs = append(s.runs, m)
	return nil
}

// Ready returns an error while there is no certificate that the API server trusts.
func (s *Source) Ready() error {
	if s.ready == nil {
		return nil
	}
	return s.ready()
}

// Configure makes the server of this configuration present the current certificate and, if the options do,
// require client certificates. It has the type of an element of TLSOpts in controller-runtime.
func (s *Source) Configure(c *tls.Config) {
	c.GetCertificate = s.getCertificate
	if s.clientCAs != nil {
		RequireClients(c, s.clientCAs)
	}
}

// RequireClients makes the server of this configuration require a client certificate of one of the CAs. It calls
// cas for each new connection.
func RequireClients(c *tls.Config, cas func() *x509.CertPool) {
	// The server would not verify a resumed session against the current CAs.
	c.SessionTicketsDisabled = true
	c.ClientAuth = tls.RequireAndVerifyClientCert
	c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		current := c.Clone()
		current.GetConfigForClient = nil
		current.ClientCAs = cas()
		return current, nil
	}
}

// Start keeps the certificates up to date until the context ends. It implements manager.Runnable.
func (s *Source) Start(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, run := range s.runs {
		group.Go(func() error { return run.Start(ctx) })
	}
	return group.Wait()
}
