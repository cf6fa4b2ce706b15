// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package certificates

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/cert"
)

// injectedByOthers is the prefix of the annotations that make cert-manager write the CA bundle.
const injectedByOthers = "cert-manager.io/inject-"

// injected returns the CAs that are in the bundles of all webhooks of the configuration.
func injected(config *admissionregistrationv1.MutatingWebhookConfiguration) []*x509.Certificate {
	if config == nil {
		return nil
	}
	var all []*x509.Certificate
	for i := range config.Webhooks {
		// The API server trusts no CA of an invalid bundle.
		these, _ := cert.ParseCertsPEM(config.Webhooks[i].ClientConfig.CABundle)
		if i == 0 {
			all = these
			continue
		}
		all = without(all, func(c *x509.Certificate) bool { return !holds(these, c) })
	}
	return all
}

// contested returns an error if cert-manager also writes the bundle.
func contested(config *admissionregistrationv1.MutatingWebhookConfiguration) error {
	for name := range config.Annotations {
		if strings.HasPrefix(name, injectedByOthers) {
			return fmt.Errorf("MutatingWebhookConfiguration %s: cert-manager writes the CA bundle because of the annotation %s: remove the annotation or --self-managed-certs", config.Name, name)
		}
	}
	return nil
}

// inject writes the bundle of the Secret to every webhook of the configuration.
//
// The cached Secret may be older than the last write of another replica, which inject must not undo. Therefore it reads the
// Secret after the configuration, and the patch fails if the configuration has changed. The bundle is then never older than
// the one that it replaces.
func (m *manager) inject(ctx context.Context, config *admissionregistrationv1.MutatingWebhookConfiguration) error {
	secret, err := m.secrets().Get(ctx, SecretName, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading the Secret with the CA: %w", err)
	}
	r, err := parseRecord(secret)
	if err != nil {
		return fmt.Errorf("decoding Secret %s: %w", SecretName, err)
	}
	patch, err := bundlePatch(config, r.bundle)
	if err != nil || patch == nil {
		return err
	}
	if _, err := m.configs().Patch(ctx, m.configuration, types.JSONPatchType, patch, metav1.PatchOptions{FieldManager: fieldManager}); err != nil {
		return fmt.Errorf("writing the CA bundle to MutatingWebhookConfiguration %s: %w", m.configuration, err)
	}
	m.Log.Info("Wrote the CA bundle", "webhookConfiguration", m.configuration, "cas", len(r.bundle))
	return nil
}

// bundlePatch returns the JSON patch that sets the bundle, or nil if there is nothing to change. The patch fails if the
// configuration has changed.
func bundlePatch(config *admissionregistrationv1.MutatingWebhookConfiguration, cas []*x509.Certificate) ([]byte, error) {
	bundle, err := cert.EncodeCertificates(cas...)
	if err != nil {
		return nil, fmt.Errorf("encoding CAs: %w", err)
	}
	differs := func(w admissionregistrationv1.MutatingWebhook) bool {
		return !bytes.Equal(w.ClientConfig.CABundle, bundle)
	}
	if !slices.ContainsFunc(config.Webhooks, differs) {
		return nil, nil
	}
	type operation struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value any    `json:"value"`
	}
	// A different resourceVersion makes the patch a conflict.
	patch := []operation{{"replace", "/metadata/resourceVersion", config.ResourceVersion}}
	for i := range config.Webhooks {
		patch = append(patch, operation{"add", fmt.Sprintf("/webhooks/%d/clientConfig/caBundle", i), bundle})
	}
	return json.Marshal(patch)
}
