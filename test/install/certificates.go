// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package install

import (
	"context"
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	cmapi "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	"github.com/cert-manager/cert-manager/pkg/util/pki"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/prebind/prebind/test/cluster"
)

// signed is a certificate with its key, in PEM and decoded.
type signed struct {
	cert            *x509.Certificate
	key             crypto.Signer
	certPEM, keyPEM []byte
}

// IssueCertificates replaces cert-manager, which takes seconds to start and cannot backdate a certificate. With cert-manager's
// library it signs the shipped Certificates, each time with a new CA. It writes the serving certificate to its Secret and to the
// files of the replicas, and sets the CA of the webhook configuration. Without installed Certificates, or with
// Options.CertManager, it does nothing.
func (p *Prebind) IssueCertificates(ctx context.Context) error {
	if p.o.WithoutCertManager || p.o.CertManager {
		return nil
	}
	var certificates cmapi.CertificateList
	if err := p.client.List(ctx, &certificates, client.InNamespace(Namespace)); err != nil {
		return fmt.Errorf("listing Certificates: %w", err)
	}
	if len(certificates.Items) == 0 {
		return nil // The installation does not use cert-manager.
	}
	ca := slices.IndexFunc(certificates.Items, func(c cmapi.Certificate) bool { return c.Spec.IsCA })
	serving := slices.IndexFunc(certificates.Items, func(c cmapi.Certificate) bool { return c.Spec.SecretName == servingSecret })
	if ca < 0 || serving < 0 {
		return fmt.Errorf("the manifests need a Certificate for a CA and one for the Secret %s", servingSecret)
	}
	issuer, err := p.sign(&certificates.Items[ca], nil)
	if err != nil {
		return err
	}
	leaf, err := p.sign(&certificates.Items[serving], issuer)
	if err != nil {
		return err
	}
	files := map[string][]byte{corev1.TLSCertKey: leaf.certPEM, corev1.TLSPrivateKeyKey: leaf.keyPEM, "ca.crt": issuer.certPEM}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: servingSecret}}
	if _, err := controllerutil.CreateOrUpdate(ctx, p.client, secret, func() error {
		secret.Type, secret.Data = corev1.SecretTypeTLS, files
		return nil
	}); err != nil {
		return fmt.Errorf("writing the serving certificate: %w", err)
	}
	if err := writeFiles(p.CertDir(), files); err != nil {
		return err
	}
	config := &admissionregistrationv1.MutatingWebhookConfiguration{}
	if err := p.client.Get(ctx, client.ObjectKey{Name: webhookConfig}, config); err != nil {
		return fmt.Errorf("reading the webhook configuration: %w", err)
	}
	for i := range config.Webhooks {
		config.Webhooks[i].ClientConfig.CABundle = issuer.certPEM
	}
	return p.client.Update(ctx, config)
}

// sign signs the certificate with the issuer, or with its own key without an issuer.
func (p *Prebind) sign(crt *cmapi.Certificate, issuer *signed) (*signed, error) {
	template, templateErr := pki.CertificateTemplateFromCertificate(crt)
	key, keyErr := pki.GeneratePrivateKeyForCertificate(crt)
	if err := errors.Join(templateErr, keyErr); err != nil {
		return nil, fmt.Errorf("signing Certificate %s: %w", crt.Name, err)
	}
	if p.o.Clock {
		template.NotBefore = template.NotBefore.Add(-cluster.Backdated)
	}
	out := &signed{key: key}
	parent, parentKey := template, key
	if issuer != nil {
		parent, parentKey = issuer.cert, issuer.key
	}
	var certErr error
	out.certPEM, out.cert, certErr = pki.SignCertificate(template, parent, key.Public(), parentKey)
	out.keyPEM, keyErr = pki.EncodePrivateKey(key, cmapi.PKCS1)
	if err := errors.Join(certErr, keyErr); err != nil {
		return nil, fmt.Errorf("signing Certificate %s: %w", crt.Name, err)
	}
	return out, nil
}

// CertManager returns the process of cert-manager, or nil without Options.CertManager. The caller stops it before the cluster.
func (p *Prebind) CertManager() *cluster.Process { return p.certManager }

// Renew requests another certificate from cert-manager for a Certificate, like `cmctl renew`. It does not wait for the certificate.
func (p *Prebind) Renew(ctx context.Context, certificate string) error {
	return p.kubectl(ctx, "patch", "certificate", certificate, "--namespace="+Namespace, "--subresource=status", "--type=json",
		`--patch=[{"op":"add","path":"/status/conditions/-","value":{"type":"Issuing","status":"True","reason":"ManuallyTriggered"}}]`)
}

// awaitSecret waits until cert-manager has written the Secret. The kubelet starts a pod after that.
func (p *Prebind) awaitSecret(ctx context.Context, name string) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, cluster.Patience, true, func(ctx context.Context) (bool, error) {
		last = p.client.Get(ctx, client.ObjectKey{Namespace: Namespace, Name: name}, &corev1.Secret{})
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("waiting for cert-manager: %w", last)
	}
	return nil
}
