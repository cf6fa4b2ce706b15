// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package certificates

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

const (
	// SecretName is the name of the Secret with the CA in Prebind's namespace. tls.crt and tls.key are the CA, and ca.crt contains all
	// trusted CAs.
	SecretName = "prebind-webhook-ca"
	// RotateAnnotation on the Secret, with any value, requests a new CA.
	RotateAnnotation = "prebind.dev/rotate"

	bundleKey = "ca.crt"
)

// record is the content of the Secret. It is immutable.
type record struct {
	// current signs when every API server trusts it.
	current *authority
	// bundle contains the trusted CAs: current and earlier ones.
	bundle []*x509.Certificate
	// rotate requests a new CA.
	rotate bool
}

// parseRecord parses a Secret. It returns an error if the parts do not match.
func parseRecord(secret *corev1.Secret) (*record, error) {
	r := &record{}
	var err error
	if r.current, err = parseAuthority(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey]); err != nil {
		return nil, fmt.Errorf("%s and %s: %w", corev1.TLSCertKey, corev1.TLSPrivateKeyKey, err)
	}
	if r.bundle, err = cert.ParseCertsPEM(secret.Data[bundleKey]); err != nil {
		return nil, fmt.Errorf("%s: %w", bundleKey, err)
	}
	if !holds(r.bundle, r.current.Leaf) {
		return nil, fmt.Errorf("%s does not contain the CA of %s", bundleKey, corev1.TLSCertKey)
	}
	_, r.rotate = secret.Annotations[RotateAnnotation]
	return r, nil
}

// write replaces the content of a Secret. A request for a new CA is then fulfilled.
func (r *record) write(secret *corev1.Secret) error {
	key, err := x509.MarshalPKCS8PrivateKey(r.current.PrivateKey)
	if err != nil {
		return fmt.Errorf("encoding the key of the CA: %w", err)
	}
	secret.Data = map[string][]byte{
		corev1.TLSCertKey:       encode(r.current.Leaf),
		corev1.TLSPrivateKeyKey: pem.EncodeToMemory(&pem.Block{Type: keyutil.PrivateKeyBlockType, Bytes: key}),
		bundleKey:               encode(r.bundle...),
	}
	delete(secret.Annotations, RotateAnnotation)
	return nil
}

// encode returns the certificates in PEM.
func encode(all ...*x509.Certificate) []byte {
	text, _ := cert.EncodeCertificates(all...) // Memory accepts everything.
	return text
}

func holds(bundle []*x509.Certificate, ca *x509.Certificate) bool {
	return slices.ContainsFunc(bundle, ca.Equal)
}
