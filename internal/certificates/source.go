// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package certificates

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Shared holds the dependencies of a Source. Self-managed certificates require all fields, others all but the last two.
type Shared struct {
	Clock   clock.PassiveClock
	Log     klog.Logger
	Metrics *Metrics
	// Client returns a client that reads from the API server. Only parts that run call it.
	Client func() client.Client
	// Namespace is that of the Secret and of the Service.
	Namespace string
}

// Part is the serving certificate, or the CAs of clients.
type Part struct {
	// Ready returns an error until the API server trusts the certificate, or one of the CAs is valid. It is safe for concurrent use.
	Ready func() error
	// Run keeps the part up to date until the context ends.
	Run func(ctx context.Context)
}

// Source provides the certificates that Options select. Configure is safe for concurrent use.
type Source struct {
	// Parts must run while the server runs.
	Parts []Part

	getCertificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// clientCAs is nil if every client may call.
	clientCAs func() *x509.CertPool
}

// New reads the files that the options name. An error names the flag.
func New(o Options, shared Shared) (*Source, error) {
	s := &Source{}
	if o.SelfManaged {
		m := newManager(o, shared)
		s.getCertificate = m.getCertificate
		s.Parts = append(s.Parts, Part{Ready: m.ready, Run: m.start})
	} else {
		files, err := newFollower(shared, Serving, parsePair, filepath.Join(o.Dir, corev1.TLSCertKey), filepath.Join(o.Dir, corev1.TLSPrivateKeyKey))
		if err != nil {
			return nil, fmt.Errorf("--cert-dir: reading the certificate: %w", err)
		}
		s.getCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return files.get(), nil }
		s.Parts = append(s.Parts, Part{Ready: files.ready, Run: files.start})
	}
	if o.ClientCAFile != "" {
		clients, err := newFollower(shared, ClientCA, parsePool, o.ClientCAFile)
		if err != nil {
			return nil, fmt.Errorf("--client-ca-file: reading the CA of clients: %w", err)
		}
		s.clientCAs = clients.get
		s.Parts = append(s.Parts, Part{Ready: clients.ready, Run: clients.start})
	}
	return s, nil
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
