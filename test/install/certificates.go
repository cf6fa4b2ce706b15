// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package install

import (
	"bytes"
	"context"
	"crypto"
	"crypto/x509"
	"fmt"
	"strings"

	cmapi "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	"github.com/cert-manager/cert-manager/pkg/util/pki"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/prebind/prebind/test/cluster"
)

// injectFrom is the annotation with which a webhook configuration requests its CA from cert-manager.
const injectFrom = "cert-manager.io/inject-ca-from"

// issued is a certificate with its key and the CA that signed it.
type issued struct {
	cert    *x509.Certificate
	key     crypto.Signer
	certPEM []byte
	keyPEM  []byte
	caPEM   []byte
}

// IssueCertificates does the work of cert-manager for the Issuers and Certificates in the cluster. It writes their Secrets,
// mounts the serving certificate into the replicas, and injects the CA into the webhook configuration. Each further call renews
// the serving certificate under a new CA. Without installed Certificates it does nothing.
func (p *Prebind) IssueCertificates(ctx context.Context) error {
	if p.o.WithoutCertManager {
		return nil
	}
	var certificates cmapi.CertificateList
	if err := p.client.List(ctx, &certificates, client.InNamespace(Namespace)); err != nil {
		return fmt.Errorf("listing Certificates: %w", err)
	}
	if len(certificates.Items) == 0 {
		return nil // The installation does not use cert-manager.
	}
	done := map[string]*issued{}
	for len(done) < len(certificates.Items) {
		before := len(done)
		for i := range certificates.Items {
			crt := &certificates.Items[i]
			if done[crt.Name] != nil {
				continue
			}
			signer, ready, err := p.signer(ctx, crt, certificates.Items, done)
			if err != nil {
				return err
			}
			if !ready {
				continue
			}
			if done[crt.Name], err = p.issue(ctx, crt, signer); err != nil {
				return fmt.Errorf("issuing Certificate %s: %w", crt.Name, err)
			}
		}
		if len(done) == before {
			return fmt.Errorf("the Certificates in %s sign each other in a cycle", Namespace)
		}
	}
	p.issued = done
	return p.injectCA(ctx, done)
}

// RenewCertificate issues another serving certificate under the same CA, like cert-manager before the certificate expires.
func (p *Prebind) RenewCertificate(ctx context.Context) error {
	var certificates cmapi.CertificateList
	if err := p.client.List(ctx, &certificates, client.InNamespace(Namespace)); err != nil {
		return fmt.Errorf("listing Certificates: %w", err)
	}
	for i := range certificates.Items {
		crt := &certificates.Items[i]
		if crt.Spec.SecretName != servingSecret {
			continue
		}
		signer, _, err := p.signer(ctx, crt, certificates.Items, p.issued)
		if err != nil {
			return err
		}
		if _, err := p.issue(ctx, crt, signer); err != nil {
			return fmt.Errorf("renewing Certificate %s: %w", crt.Name, err)
		}
		return nil
	}
	return fmt.Errorf("no Certificate writes the Secret %s", servingSecret)
}

// signer returns the CA that signs a Certificate, or nil for a self-signed one. It is not ready until the certificate of the CA
// has been issued.
func (p *Prebind) signer(ctx context.Context, crt *cmapi.Certificate, all []cmapi.Certificate, done map[string]*issued) (*issued, bool, error) {
	var issuer cmapi.Issuer
	if err := p.client.Get(ctx, client.ObjectKey{Namespace: crt.Namespace, Name: crt.Spec.IssuerRef.Name}, &issuer); err != nil {
		return nil, false, fmt.Errorf("reading the issuer of Certificate %s: %w", crt.Name, err)
	}
	switch {
	case issuer.Spec.SelfSigned != nil:
		return nil, true, nil
	case issuer.Spec.CA != nil:
		for i := range all {
			if all[i].Spec.SecretName == issuer.Spec.CA.SecretName {
				ca := done[all[i].Name]
				return ca, ca != nil, nil
			}
		}
		return nil, false, fmt.Errorf("no Certificate writes the Secret %s of Issuer %s", issuer.Spec.CA.SecretName, issuer.Name)
	default:
		return nil, false, fmt.Errorf("unsupported type of Issuer %s", issuer.Name)
	}
}

// issue signs the certificate with cert-manager's library, writes its Secret, and updates the files of replicas that mount it.
func (p *Prebind) issue(ctx context.Context, crt *cmapi.Certificate, signer *issued) (*issued, error) {
	template, err := pki.CertificateTemplateFromCertificate(crt)
	if err != nil {
		return nil, err
	}
	if p.o.Clock {
		// Backdate the certificate. See cluster.Backdated.
		template.NotBefore = template.NotBefore.Add(-cluster.Backdated)
	}
	key, err := pki.GeneratePrivateKeyForCertificate(crt)
	if err != nil {
		return nil, err
	}
	out := &issued{key: key}
	parent, parentKey := template, key
	if signer != nil {
		parent, parentKey = signer.cert, signer.key
	}
	if out.certPEM, out.cert, err = pki.SignCertificate(template, parent, key.Public(), parentKey); err != nil {
		return nil, err
	}
	if out.keyPEM, err = pki.EncodePrivateKey(key, cmapi.PKCS1); err != nil {
		return nil, err
	}
	out.caPEM = out.certPEM
	if signer != nil {
		out.caPEM = signer.caPEM
	}
	files := map[string][]byte{corev1.TLSCertKey: out.certPEM, corev1.TLSPrivateKeyKey: out.keyPEM, "ca.crt": out.caPEM}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: crt.Namespace, Name: crt.Spec.SecretName}}
	if _, err := controllerutil.CreateOrUpdate(ctx, p.client, secret, func() error {
		secret.Type, secret.Data = corev1.SecretTypeTLS, files
		return nil
	}); err != nil {
		return nil, err
	}
	return out, writeFiles(p.file("secrets/"+crt.Spec.SecretName), files)
}

// injectCA writes the CA into the webhook configuration that requests it, like cert-manager's injector.
func (p *Prebind) injectCA(ctx context.Context, certificates map[string]*issued) error {
	config, err := p.webhooks(ctx)
	if err != nil {
		return err
	}
	namespace, name, _ := strings.Cut(config.Annotations[injectFrom], "/")
	from := certificates[name]
	if namespace != Namespace || from == nil {
		return fmt.Errorf("the annotation %s of the webhook configuration is %q, which is not a Certificate of %s", injectFrom, config.Annotations[injectFrom], Namespace)
	}
	for i := range config.Webhooks {
		if !bytes.Equal(config.Webhooks[i].ClientConfig.CABundle, from.caPEM) {
			config.Webhooks[i].ClientConfig.CABundle = from.caPEM
		}
	}
	return p.client.Update(ctx, config)
}
