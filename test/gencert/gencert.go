// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package gencert makes certificates for tests.
package gencert

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// Pair is a certificate with its key, parsed and in PEM.
type Pair struct {
	Cert            *x509.Certificate
	Key             crypto.Signer
	CertPEM, KeyPEM []byte
}

// Option changes a certificate before it is signed.
type Option func(*x509.Certificate)

// Valid is from when to when, relative to now.
func Valid(from, to time.Duration) Option {
	return func(c *x509.Certificate) { c.NotBefore, c.NotAfter = time.Now().Add(from), time.Now().Add(to) }
}

// DNS are the names of a server.
func DNS(names ...string) Option { return func(c *x509.Certificate) { c.DNSNames = names } }

// NewCA makes a CA that is valid for a day.
func NewCA(t testing.TB, name string, options ...Option) *Pair {
	t.Helper()
	return sign(t, nil, name, append([]Option{func(c *x509.Certificate) {
		c.IsCA, c.BasicConstraintsValid = true, true
		c.KeyUsage |= x509.KeyUsageCertSign
	}}, options...))
}

// Sign makes a certificate for a server and client of this name that is valid for
// a day.
func (p *Pair) Sign(t testing.TB, name string, options ...Option) *Pair {
	t.Helper()
	return sign(t, p, name, append([]Option{func(c *x509.Certificate) {
		c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	}}, options...))
}

// TLS is the certificate for package tls.
func (p *Pair) TLS(t testing.TB) tls.Certificate {
	t.Helper()
	pair, err := tls.X509KeyPair(p.CertPEM, p.KeyPEM)
	require.NoError(t, err)
	return pair
}

// Pool is one of these certificates.
func Pool(pairs ...*Pair) *x509.CertPool {
	pool := x509.NewCertPool()
	for _, p := range pairs {
		pool.AddCert(p.Cert)
	}
	return pool
}

func sign(t testing.TB, by *Pair, name string, options []Option) *Pair {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: name}, KeyUsage: x509.KeyUsageDigitalSignature}
	Valid(-time.Hour, 24*time.Hour)(template)
	for _, option := range options {
		option(template)
	}
	parent, signer := template, crypto.Signer(key)
	if by != nil {
		parent, signer = by.Cert, by.Key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	require.NoError(t, err)
	made := &Pair{Key: key}
	made.Cert, err = x509.ParseCertificate(der)
	require.NoError(t, err)
	made.CertPEM, err = cert.EncodeCertificates(made.Cert)
	require.NoError(t, err)
	made.KeyPEM, err = keyutil.MarshalPrivateKeyToPEM(key)
	require.NoError(t, err)
	return made
}
