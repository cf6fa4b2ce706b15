// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package certificates

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"time"
)

const (
	caName = "prebind-webhook-ca"
	// early is subtracted from the creation time of a certificate, because clocks differ between machines. A certificate
	// that is not valid yet fails every bind.
	early = 24 * time.Hour
)

// authority is a CA with its key.
type authority tls.Certificate

// newAuthority creates a CA.
func newAuthority(now time.Time, validity time.Duration) (*authority, error) {
	made, err := sign(&x509.Certificate{
		Subject:               pkix.Name{CommonName: caName},
		NotBefore:             now.Add(-early),
		NotAfter:              now.Add(validity),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true, // It signs serving certificates only.
	}, nil)
	if err != nil {
		return nil, fmt.Errorf("creating a CA: %w", err)
	}
	return (*authority)(made), nil
}

// parseAuthority parses a CA and its key.
func parseAuthority(certPEM, keyPEM []byte) (*authority, error) {
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err == nil && !pair.Leaf.IsCA {
		err = errors.New("not a CA")
	}
	return (*authority)(&pair), err
}

// leaf is a serving certificate and the CA that signed it.
type leaf struct {
	tls *tls.Certificate
	by  *authority
}

// issue creates a serving certificate. It expires no later than the CA.
func (a *authority) issue(now time.Time, validity time.Duration, names []string) (*leaf, error) {
	made, err := sign(&x509.Certificate{
		Subject:     pkix.Name{CommonName: names[0]},
		DNSNames:    names,
		NotBefore:   now.Add(-early),
		NotAfter:    a.ends(now, validity),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, a)
	if err != nil {
		return nil, fmt.Errorf("creating a certificate: %w", err)
	}
	return &leaf{tls: made, by: a}, nil
}

// ends returns the expiration time of a certificate that is issued now.
func (a *authority) ends(now time.Time, validity time.Duration) time.Time {
	if end := now.Add(validity); end.Before(a.Leaf.NotAfter) {
		return end
	}
	return a.Leaf.NotAfter
}

// sign creates a key and a certificate with a random serial number. Without a CA, the certificate signs itself.
func sign(template *x509.Certificate, ca *authority) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	if ca == nil {
		ca = &authority{Leaf: template, PrivateKey: key}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.Leaf, key.Public(), ca.PrivateKey)
	if err != nil {
		return nil, err
	}
	made, err := x509.ParseCertificate(der)
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: made}, err
}
