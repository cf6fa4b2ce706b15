// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package certificates

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/util/cert"
)

// parsePair parses a certificate and its key. It returns an error if they do not match.
func parsePair(files [][]byte, now time.Time) (*tls.Certificate, time.Time, error) {
	pair, err := tls.X509KeyPair(files[0], files[1])
	if err != nil {
		return nil, time.Time{}, err
	}
	return &pair, pair.Leaf.NotAfter, validAt(pair.Leaf, now)
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
	return cmp.Or(c.Subject.CommonName, strings.Join(c.DNSNames, ", "))
}

// parsePool parses the CAs of callers. It keeps CAs that are not valid now, because a bundle may contain old and future ones, and each
// handshake checks the validity. The pool expires with the last of its CAs.
func parsePool(files [][]byte, now time.Time) (*x509.CertPool, time.Time, error) {
	var expires time.Time
	all, err := cert.ParseCertsPEM(files[0])
	if err != nil {
		return nil, expires, fmt.Errorf("no certificate in PEM: %w", err)
	}
	pool := x509.NewCertPool()
	for _, c := range all {
		if !c.IsCA {
			return nil, time.Time{}, fmt.Errorf("the certificate of %q is not a CA certificate: use the CA that signs the API server's client certificate", nameOf(c))
		}
		pool.AddCert(c)
		if c.NotAfter.After(expires) {
			expires = c.NotAfter
		}
	}
	if slices.ContainsFunc(all, func(c *x509.Certificate) bool { return validAt(c, now) == nil }) {
		return pool, expires, nil
	}
	return pool, expires, validAt(all[len(all)-1], now)
}
