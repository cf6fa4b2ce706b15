// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

const (
	// certLife is far longer than any cluster of this package.
	certLife = 365 * 24 * time.Hour
	// Backdated is for how long the certificates of a new cluster have been valid: those
	// of most clusters are older than any clock is behind.
	Backdated = 2 * time.Hour
)

// pki is the authority that signs every certificate of one cluster: it is the client CA, the serving CA, and the signer of the
// certificates API. Its files are for the components to read.
type pki struct {
	dir  string
	cert *x509.Certificate
	key  crypto.Signer
	pem  []byte
}

// pair is a certificate and its key, both PEM.
type pair struct{ cert, key []byte }

// newPKI makes the authority and the key that signs service account tokens.
func newPKI(dir string) (*pki, error) {
	key, caKey, err := newKey()
	if err != nil {
		return nil, err
	}
	ca, err := cert.NewSelfSignedCACert(cert.Config{CommonName: "prebind-test-cluster", NotBefore: time.Now().Add(-Backdated)}, key)
	if err != nil {
		return nil, fmt.Errorf("make the certificate authority: %w", err)
	}
	token, tokenKey, err := newKey()
	if err != nil {
		return nil, err
	}
	tokenPublic, err := x509.MarshalPKIXPublicKey(token.Public())
	if err != nil {
		return nil, fmt.Errorf("encode the service account key: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder for certificates: %w", err)
	}
	p := &pki{dir: dir, cert: ca, key: key, pem: encode("CERTIFICATE", ca.Raw)}
	return p, errors.Join(
		p.write("ca.crt", p.pem), p.write("ca.key", caKey),
		p.write("service-account.key", tokenKey), p.write("service-account.pub", encode("PUBLIC KEY", tokenPublic)),
	)
}

// client makes a certificate that the API server takes for the user.
func (p *pki) client(user string, groups ...string) (pair, error) {
	return p.issue(&x509.Certificate{
		Subject: pkix.Name{CommonName: user, Organization: groups}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

// writeServing makes serving.crt and serving.key: a certificate for servers on the loopback address, and for the API server.
func (p *pki) writeServing() error {
	serving, err := p.issue(&x509.Certificate{
		Subject: pkix.Name{CommonName: "serving"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:    []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "localhost"},
		IPAddresses: []net.IP{net.ParseIP(apiServiceIP), net.ParseIP(loopback)},
	})
	if err != nil {
		return err
	}
	return errors.Join(p.write("serving.crt", serving.cert), p.write("serving.key", serving.key))
}

// issue completes and signs the certificate.
func (p *pki) issue(template *x509.Certificate) (pair, error) {
	key, keyPEM, err := newKey()
	if err != nil {
		return pair{}, err
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)); err != nil {
		return pair{}, fmt.Errorf("make a serial number: %w", err)
	}
	now := time.Now()
	template.NotBefore, template.NotAfter, template.KeyUsage = now.Add(-Backdated), now.Add(certLife), x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, p.cert, key.Public(), p.key)
	if err != nil {
		return pair{}, fmt.Errorf("sign the certificate of %s: %w", template.Subject.CommonName, err)
	}
	return pair{cert: encode("CERTIFICATE", der), key: keyPEM}, nil
}

// newKey makes a key, and returns it also in PEM.
func newKey() (crypto.Signer, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make a key: %w", err)
	}
	encoded, err := keyutil.MarshalPrivateKeyToPEM(key)
	return key, encoded, err
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

func (p *pki) write(name string, content []byte) error {
	if err := os.WriteFile(p.file(name), content, 0o600); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

func (p *pki) file(name string) string { return filepath.Join(p.dir, name) }
