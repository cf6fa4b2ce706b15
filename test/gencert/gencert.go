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
	"errors"
	"math/big"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// Pair is a certificate with its key, parsed and in PEM.
type Pair struct {
	Cert            *x509.Certificate
	Key             crypto.Signer
	CertPEM, KeyPEM []byte
}

// T is the part of testing.TB that this package uses, so that programs that use it need not contain package testing.
type T interface {
	Helper()
	Fatal(args ...any)
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
func NewCA(t T, name string, options ...Option) *Pair {
	t.Helper()
	return sign(t, nil, name, append([]Option{func(c *x509.Certificate) {
		c.IsCA, c.BasicConstraintsValid = true, true
		c.KeyUsage |= x509.KeyUsageCertSign
	}}, options...))
}

// Sign makes a certificate for a server and client of this name that is valid for
// a day.
func (p *Pair) Sign(t T, name string, options ...Option) *Pair {
	t.Helper()
	return sign(t, p, name, append([]Option{func(c *x509.Certificate) {
		c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	}}, options...))
}

// TLS is the certificate for package tls.
func (p *Pair) TLS(t T) tls.Certificate {
	t.Helper()
	pair, err := tls.X509KeyPair(p.CertPEM, p.KeyPEM)
	if err != nil {
		t.Fatal(err)
	}
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

func sign(t T, by *Pair, name string, options []Option) *Pair {
	t.Helper()
	template := &x509.Certificate{Subject: pkix.Name{CommonName: name}}
	Valid(-time.Hour, 24*time.Hour)(template)
	for _, option := range options {
		option(template)
	}
	made, err := Issue(by, template)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// Issue makes a key, and a certificate for it that this pair signs, or without one the key itself. It sets the serial number of the
// template.
func Issue(by *Pair, template *x509.Certificate) (*Pair, error) {
	key, keyErr := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	serial, serialErr := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err := errors.Join(keyErr, serialErr); err != nil {
		return nil, err
	}
	template.SerialNumber, template.KeyUsage = serial, template.KeyUsage|x509.KeyUsageDigitalSignature
	parent, signer := template, crypto.Signer(key)
	if by != nil {
		parent, signer = by.Cert, by.Key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		return nil, err
	}
	made := &Pair{Key: key}
	var errs [3]error
	made.Cert, errs[0] = x509.ParseCertificate(der)
	made.CertPEM, errs[1] = cert.EncodeCertificates(made.Cert)
	made.KeyPEM, errs[2] = keyutil.MarshalPrivateKeyToPEM(key)
	return made, errors.Join(errs[:]...)
}
