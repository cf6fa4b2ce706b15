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
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/util/keyutil"
)

const (
	// certLife is far longer than any cluster of this package.
	certLife = 365 * 24 * time.Hour
	// Backdated is for how long the certificates of a new cluster have been valid: those
	// of most clusters are older than any clock is behind.
	Backdated = 2 * time.Hour
)

// authority signs every certificate of one cluster: it is the client CA, the
// serving CA, and the signer of the certificates API.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
	pem  []byte
}

// pair is a certificate and its key, both PEM.
type pair struct{ cert, key []byte }

func newAuthority(name string) (*authority, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	template, err := newTemplate(pkix.Name{CommonName: name})
	if err != nil {
		return nil, err
	}
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make the certificate authority: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("make the certificate authority: %w", err)
	}
	return &authority{cert: cert, key: key, pem: encodeCert(der)}, nil
}

// client makes a certificate that the API server takes for the user.
func (a *authority) client(user string, groups ...string) (pair, error) {
	return a.issue(pkix.Name{CommonName: user, Organization: groups}, x509.ExtKeyUsageClientAuth, nil, nil)
}

// serving makes a certificate for a server on the loopback address and under the
// names given.
func (a *authority) serving(name string, dnsNames []string, ips ...net.IP) (pair, error) {
	return a.issue(pkix.Name{CommonName: name}, x509.ExtKeyUsageServerAuth,
		append([]string{"localhost"}, dnsNames...), append([]net.IP{net.ParseIP(loopback)}, ips...))
}

func (a *authority) issue(subject pkix.Name, usage x509.ExtKeyUsage, dnsNames []string, ips []net.IP) (pair, error) {
	key, err := newKey()
	if err != nil {
		return pair{}, err
	}
	template, err := newTemplate(subject)
	if err != nil {
		return pair{}, err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{usage}
	template.DNSNames, template.IPAddresses = dnsNames, ips
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return pair{}, fmt.Errorf("sign the certificate of %s: %w", subject.CommonName, err)
	}
	keyPEM, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return pair{}, fmt.Errorf("encode the key of %s: %w", subject.CommonName, err)
	}
	return pair{cert: encodeCert(der), key: keyPEM}, nil
}

func newKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	return key, nil
}

func newTemplate(subject pkix.Name) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, fmt.Errorf("make a serial number: %w", err)
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      subject,
		NotBefore:    now.Add(-Backdated),
		NotAfter:     now.Add(certLife),
	}, nil
}

func encodeCert(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// pki is a cluster's certificates and keys as files, for the components to read.
type pki struct {
	*authority
	dir string
}

// newPKI makes the authority and the key that signs service account tokens.
func newPKI(dir string) (*pki, error) {
	ca, err := newAuthority("prebind-test-cluster")
	if err != nil {
		return nil, err
	}
	caKey, err := keyutil.MarshalPrivateKeyToPEM(ca.key)
	if err != nil {
		return nil, fmt.Errorf("encode the authority's key: %w", err)
	}
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	tokenKey, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return nil, fmt.Errorf("encode the service account key: %w", err)
	}
	tokenPublic, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, fmt.Errorf("encode the service account key: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder for certificates: %w", err)
	}
	p := &pki{authority: ca, dir: dir}
	for name, content := range map[string][]byte{
		"ca.crt":              ca.pem,
		"ca.key":              caKey,
		"service-account.key": tokenKey,
		"service-account.pub": pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: tokenPublic}),
	} {
		if err := p.write(name, content); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// writeServing makes a serving certificate: NAME.crt and NAME.key.
func (p *pki) writeServing(name string, dnsNames []string, ips ...net.IP) error {
	serving, err := p.serving(name, dnsNames, ips...)
	if err != nil {
		return err
	}
	if err := p.write(name+".crt", serving.cert); err != nil {
		return err
	}
	return p.write(name+".key", serving.key)
}

func (p *pki) write(name string, content []byte) error {
	if err := os.WriteFile(p.file(name), content, 0o600); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

func (p *pki) file(name string) string { return filepath.Join(p.dir, name) }
