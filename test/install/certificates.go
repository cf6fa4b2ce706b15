// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package install

import (
	"context"
	"fmt"
	"slices"

	cmapi "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/prebind/prebind/test/cluster"
)

// IssueCertificates replaces cert-manager, which takes seconds to start and cannot backdate a certificate. It signs the serving
// certificate with a new CA, writes its Secret and the files of the replicas, and sets the CA of the webhook configuration.
// Without an installed Certificate, or with Options.CertManager, it does nothing.
func (p *Prebind) IssueCertificates(ctx context.Context) error {
	if p.o.WithoutCertManager || p.o.CertManager {
		return nil
	}
	var certificates cmapi.CertificateList
	if err := p.client.List(ctx, &certificates, client.InNamespace(Namespace)); err != nil {
		return fmt.Errorf("listing Certificates: %w", err)
	}
	i := slices.IndexFunc(certificates.Items, func(c cmapi.Certificate) bool { return c.Spec.SecretName == servingSecret })
	if i < 0 {
		return nil // The installation does not use cert-manager.
	}
	made, err := cluster.NewServingCertificate(certificates.Items[i].Spec.DNSNames...)
	if err != nil {
		return err
	}
	files := map[string][]byte{corev1.TLSCertKey: made.Cert, corev1.TLSPrivateKeyKey: made.Key, "ca.crt": made.CA}
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
	config, err := p.webhooks(ctx)
	if err != nil {
		return err
	}
	for i := range config.Webhooks {
		config.Webhooks[i].ClientConfig.CABundle = made.CA
	}
	return p.client.Update(ctx, config)
}
