// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package certificates

import (
	"crypto"
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
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
}

// newAuthority creates a CA.
func newAuthority(now time.Time, validity time.Duration) (*authority, error) {
	made, key, err := sign(&x509.Certificate{
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
	return &authority{cert: made, key: key}, nil
}

// parseAuthority parses a CA and its key.
func parseAuthority(certPEM, keyPEM []byte) (*authority, error) {
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, err
	}
	key, ok := pair.PrivateKey.(crypto.Signer)
	if !ok || !pair.Leaf.IsCA {
		return nil, errors.New("not a CA")
	}
	return &authority{cert: pair.Leaf, key: key}, nil
}

// leaf is a serving certificate and the CA that signed it.
type leaf struct {
	tls *tls.Certificate
	by  *authority
}

// issue creates a serving certificate. It expires no later than the CA.
func (a *authority) issue(now time.Time, validity time.Duration, names []string) (*leaf, error) {
	made, key, err := sign(&x509.Certificate{
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
	return &leaf{tls: &tls.Certificate{Certificate: [][]byte{made.Raw}, PrivateKey: key, Leaf: made}, by: a}, nil
}

// ends returns the expiration time of a certificate that is issued now.
func (a *authority) ends(now time.Time, validity time.Duration) time.Time {
	if end := now.Add(validity); end.Before(a.cert.NotAfter) {
		return end
	}
	return a.cert.NotAfter
}

// sign creates a key and a certificate with a random serial number. Without a CA, the certificate signs itself.
func sign(template *x509.Certificate, ca *authority) (*x509.Certificate, crypto.Signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	if ca == nil {
		ca = &authority{cert: template, key: key}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, key.Public(), ca.key)
	if err != nil {
		return nil, nil, err
	}
	made, err := x509.ParseCertificate(der)
	return made, key, err
}
