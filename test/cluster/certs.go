// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/prebind/prebind/test/gencert"
)

const (
	// certLife is far longer than any cluster of this package.
	certLife = 365 * 24 * time.Hour
	// Backdated is for how long the certificates of a new cluster have been valid: those
	// of most clusters are older than any clock is behind.
	Backdated = 2 * time.Hour
)

// pki is the authority of one cluster: the client CA, the serving CA, the signer of the certificates API, and the signer of the tokens of
// service accounts. Its files are for the components to read.
type pki struct {
	*gencert.Pair
	dir string
}

// newPKI makes the authority, and a certificate for servers on the loopback address and for the API server.
func newPKI(dir string) (*pki, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder for certificates: %w", err)
	}
	p := &pki{dir: dir}
	var err error
	if p.Pair, err = p.issue(&x509.Certificate{
		Subject: pkix.Name{CommonName: "prebind-test-cluster"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}); err != nil {
		return nil, err
	}
	serving, err := p.issue(&x509.Certificate{
		Subject: pkix.Name{CommonName: "serving"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:    []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "localhost"},
		IPAddresses: []net.IP{net.ParseIP(apiServiceIP), net.ParseIP(loopback)},
	})
	if err != nil {
		return nil, err
	}
	return p, errors.Join(p.write("ca", p.Pair), p.write("serving", serving))
}

// client makes a certificate that the API server takes for the user.
func (p *pki) client(user string, groups ...string) (*gencert.Pair, error) {
	return p.issue(&x509.Certificate{
		Subject: pkix.Name{CommonName: user, Organization: groups}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

// issue completes and signs the certificate. The first one signs itself.
func (p *pki) issue(template *x509.Certificate) (*gencert.Pair, error) {
	gencert.Valid(-Backdated, certLife)(template)
	issued, err := gencert.Issue(p.Pair, template)
	if err != nil {
		return nil, fmt.Errorf("sign the certificate of %s: %w", template.Subject.CommonName, err)
	}
	return issued, nil
}

// write writes the files NAME.crt and NAME.key.
func (p *pki) write(name string, pair *gencert.Pair) error {
	return errors.Join(os.WriteFile(p.file(name+".crt"), pair.CertPEM, 0o600), os.WriteFile(p.file(name+".key"), pair.KeyPEM, 0o600))
}

func (p *pki) file(name string) string { return filepath.Join(p.dir, name) }
