// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package certificates

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/cert"
)

// Files serves the certificate in a directory with the files tls.crt and tls.key, such as a mounted
// Secret. While Start runs, it loads changed files. It keeps the previous certificate if the new
// files or the new certificate are not valid.
type Files struct {
	follower[*tls.Certificate]
}

// NewFiles reads the certificate. It returns an error if a file is missing, if certificate and key do
// not match, or if the certificate is not valid now.
func NewFiles(dir string, o Shared) (*Files, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	f := &Files{follower[*tls.Certificate]{
		o:       o,
		name:    Serving,
		paths:   []string{filepath.Join(dir, corev1.TLSCertKey), filepath.Join(dir, corev1.TLSPrivateKeyKey)},
		parse:   parsePair,
		expires: func(c *tls.Certificate) time.Time { return c.Leaf.NotAfter },
	}}
	if err := f.begin(); err != nil {
		return nil, fmt.Errorf("reading the certificate: %w", err)
	}
	return f, nil
}

// GetCertificate implements the function of the same name in tls.Config.
func (f *Files) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) { return f.get(), nil }

func parsePair(files [][]byte, now time.Time) (*tls.Certificate, error) {
	pair, err := tls.X509KeyPair(files[0], files[1])
	if err != nil {
		return nil, err
	}
	return &pair, validAt(pair.Leaf, now)
}

// validAt returns an error for a certificate that is not valid at the given time.
func validAt(c *x509.Certificate, now time.Time) error {
	switch {
	case now.After(c.NotAfter):
		return fmt.Errorf("the certificate of %q expired at %s: renew it", nameOf(c), c.NotAfter.Format(time.RFC3339))
	case now.Before(c.NotBefore):
		return fmt.Errorf("the certificate of %q is not valid before %s: check the clock of this machine", nameOf(c), c.NotBefore.Format(time.RFC3339))
	default:
		return nil
	}
}

// nameOf returns the name of the certificate for messages.
func nameOf(c *x509.Certificate) string {
	if c.Subject.CommonName == "" && len(c.DNSNames) > 0 {
		return c.DNSNames[0]
	}
	return c.Subject.CommonName
}

// Clients contains the CAs of callers from a file with one or more CAs. While Start runs, it loads a
// changed file that is valid.
type Clients struct {
	follower[*authorities]
}

type authorities struct {
	pool    *x509.CertPool
	expires time.Time
}

// NewClients reads the file. It returns an error if the file contains no CA that is valid now.
func NewClients(file string, o Shared) (*Clients, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	c := &Clients{follower[*authorities]{
		o:       o,
		name:    ClientCA,
		paths:   []string{file},
		parse:   parseAuthorities,
		expires: func(a *authorities) time.Time { return a.expires },
	}}
	if err := c.begin(); err != nil {
		return nil, fmt.Errorf("reading the CA of clients: %w", err)
	}
	return c, nil
}

// Pool returns the CAs. It is safe for concurrent use. The caller must not change the pool.
func (c *Clients) Pool() *x509.CertPool { return c.get().pool }

// parseAuthorities skips CAs that are not valid now, because a bundle may keep old ones.
func parseAuthorities(files [][]byte, now time.Time) (*authorities, error) {
	all, err := cert.ParseCertsPEM(files[0])
	if err != nil {
		return nil, fmt.Errorf("no certificate in PEM: %w", err)
	}
	a := &authorities{pool: x509.NewCertPool()}
	var invalid error
	for _, c := range all {
		if !c.IsCA {
			return nil, fmt.Errorf("the certificate of %q is not a CA certificate: use the CA that signs the API server's client certificate", nameOf(c))
		}
		if err := validAt(c, now); err != nil {
			invalid = err
			continue
		}
		a.pool.AddCert(c)
		if a.expires.IsZero() || c.NotAfter.Before(a.expires) {
			a.expires = c.NotAfter
		}
	}
	if a.expires.IsZero() {
		return nil, invalid
	}
	return a, nil
}
