// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package certificates

import (
	"crypto/x509"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/cert"
)

const (
	// SecretName is the name of the Secret with the CA in Prebind's namespace. tls.crt and tls.key are the CA that signs,
	// ca.crt contains all trusted CAs, and next.crt and next.key exist while the next CA is being distributed.
	SecretName = "prebind-webhook-ca"
	// RotateAnnotation on the Secret, with any value, requests a new CA.
	RotateAnnotation = "prebind.dev/rotate"
	// promotedAnnotation is the time at which the CA started to sign.
	promotedAnnotation = "prebind.dev/promoted-at"

	bundleKey   = "ca.crt"
	nextCertKey = "next.crt"
	nextKeyKey  = "next.key"
)

// record is the content of the Secret. It is immutable.
type record struct {
	// current signs. next is nil unless it is being distributed.
	current, next *authority
	// bundle contains the trusted CAs: current, next and earlier ones.
	bundle []*x509.Certificate
	// promoted is the time at which current started to sign. Zero means unknown.
	promoted time.Time
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
	if len(secret.Data[nextCertKey])+len(secret.Data[nextKeyKey]) > 0 {
		if r.next, err = parseAuthority(secret.Data[nextCertKey], secret.Data[nextKeyKey]); err != nil {
			return nil, fmt.Errorf("%s and %s: %w", nextCertKey, nextKeyKey, err)
		}
	}
	if r.bundle, err = cert.ParseCertsPEM(secret.Data[bundleKey]); err != nil {
		return nil, fmt.Errorf("%s: %w", bundleKey, err)
	}
	if !holds(r.bundle, r.current.cert) || r.next != nil && !holds(r.bundle, r.next.cert) {
		return nil, fmt.Errorf("%s does not contain the signing CAs", bundleKey)
	}
	// An invalid time is treated like a missing one.
	r.promoted, _ = time.Parse(time.RFC3339, secret.Annotations[promotedAnnotation])
	_, r.rotate = secret.Annotations[RotateAnnotation]
	return r, nil
}

// write replaces the content of a Secret.
func (r *record) write(secret *corev1.Secret) error {
	bundle, err := cert.EncodeCertificates(r.bundle...)
	if err != nil {
		return fmt.Errorf("encoding CAs: %w", err)
	}
	secret.Data = map[string][]byte{corev1.TLSCertKey: r.current.certPEM, corev1.TLSPrivateKeyKey: r.current.keyPEM, bundleKey: bundle}
	if r.next != nil {
		secret.Data[nextCertKey], secret.Data[nextKeyKey] = r.next.certPEM, r.next.keyPEM
	}
	delete(secret.Annotations, RotateAnnotation)
	delete(secret.Annotations, promotedAnnotation)
	if r.rotate {
		metav1.SetMetaDataAnnotation(&secret.ObjectMeta, RotateAnnotation, "")
	}
	if !r.promoted.IsZero() {
		metav1.SetMetaDataAnnotation(&secret.ObjectMeta, promotedAnnotation, r.promoted.UTC().Format(time.RFC3339))
	}
	return nil
}

// earlier returns the trusted CAs that no longer sign.
func (r *record) earlier() []*x509.Certificate {
	return without(r.bundle, func(c *x509.Certificate) bool {
		return c.Equal(r.current.cert) || r.next != nil && c.Equal(r.next.cert)
	})
}

func holds(bundle []*x509.Certificate, ca *x509.Certificate) bool {
	return slices.ContainsFunc(bundle, ca.Equal)
}

// without returns a copy of the bundle without the CAs for which drop returns true.
func without(bundle []*x509.Certificate, drop func(*x509.Certificate) bool) []*x509.Certificate {
	return slices.DeleteFunc(slices.Clone(bundle), drop)
}
