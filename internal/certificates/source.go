// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package certificates

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Shared holds the dependencies of a Source. All fields are required.
type Shared struct {
	Clock   clock.PassiveClock
	Log     klog.Logger
	Metrics *Metrics
}

// Source provides the certificates that Options select. It is a Runnable of a manager: while Start runs, it
// keeps the certificates up to date. Configure and Ready are safe for concurrent use.
type Source struct {
	o      Options
	shared Shared

	getCertificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// clientCAs is nil if every client may call.
	clientCAs func() *x509.CertPool
	ready     []func() error
	runs      []func(ctx context.Context)
}

// New reads the files that the options name. An error names the flag. For self-managed certificates, call
// Manage before Start.
func New(o Options, shared Shared) (*Source, error) {
	s := &Source{o: o, shared: shared}
	if !o.SelfManaged {
		files, err := newFiles(o.Dir, shared)
		if err != nil {
			return nil, fmt.Errorf("--cert-dir: reading the certificate: %w", err)
		}
		s.getCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return files.get(), nil }
		s.runs, s.ready = append(s.runs, files.start), append(s.ready, files.ready)
	}
	if o.ClientCAFile != "" {
		clients, err := newClients(o.ClientCAFile, shared)
		if err != nil {
			return nil, fmt.Errorf("--client-ca-file: reading the CA of clients: %w", err)
		}
		s.clientCAs = clients.get
		s.runs, s.ready = append(s.runs, clients.start), append(s.ready, clients.ready)
	}
	return s, nil
}

// Manage prepares self-managed certificates in the namespace. It does nothing if the options do not select
// them. The client reads from the API server, not from a cache.
func (s *Source) Manage(live client.Client, namespace string) {
	if !s.o.SelfManaged {
		return
	}
	m := newManager(s.o, s.shared, live, namespace)
	s.getCertificate = m.getCertificate
	s.runs, s.ready = append(s.runs, m.start), append(s.ready, m.ready)
}

// Ready returns an error until Prebind has a certificate that the API server trusts and, if clients need one, a valid CA.
func (s *Source) Ready() error {
	for _, ready := range s.ready {
		if err := ready(); err != nil {
			return err
		}
	}
	return nil
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
	var group wait.Group
	for _, run := range s.runs {
		group.StartWithContext(ctx, run)
	}
	group.Wait()
	return nil
}
