// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package selfmanaged

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/cert"
)

// injectedByOthers is the beginning of the annotations by which cert-manager is
// asked to write the CA bundle.
const injectedByOthers = "cert-manager.io/inject-"

// injected are the CAs that every webhook of the configuration trusts.
func injected(config *admissionregistrationv1.MutatingWebhookConfiguration) []*x509.Certificate {
	if config == nil {
		return nil
	}
	var all []*x509.Certificate
	for i := range config.Webhooks {
		// What cannot be read trusts nothing.
		these, _ := cert.ParseCertsPEM(config.Webhooks[i].ClientConfig.CABundle)
		if i == 0 {
			all = these
			continue
		}
		all = without(all, func(c *x509.Certificate) bool { return !holds(these, c) })
	}
	return all
}

// lacks tells whether a webhook of the configuration has another bundle.
func lacks(config *admissionregistrationv1.MutatingWebhookConfiguration, bundle []byte) bool {
	return slices.ContainsFunc(config.Webhooks, func(w admissionregistrationv1.MutatingWebhook) bool {
		return !bytes.Equal(w.ClientConfig.CABundle, bundle)
	})
}

// contested returns an error if somebody else is asked to write the bundle.
func contested(config *admissionregistrationv1.MutatingWebhookConfiguration) error {
	for name := range config.Annotations {
		if strings.HasPrefix(name, injectedByOthers) {
			return fmt.Errorf("the annotation %s of MutatingWebhookConfiguration %s has cert-manager write the CA bundle: remove it, or --self-managed-certs", name, config.Name)
		}
	}
	return nil
}

// inject writes the bundle of the Secret into every webhook of the configuration,
// and touches nothing else.
//
// Another replica may be ahead of this one's caches, and what it wrote must not be
// undone. So the configuration is read first and the Secret after it: if the patch
// finds the configuration as it was read, then the bundle is not older than what it
// replaces.
func (m *Manager) inject(ctx context.Context) error {
	config, err := m.configs().Get(ctx, m.o.Configuration, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading the webhook configuration: %w", err)
	}
	secret, err := m.secrets().Get(ctx, SecretName, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading the Secret with the CA: %w", err)
	}
	r, err := parseRecord(secret)
	if err != nil {
		return fmt.Errorf("the Secret %s: %w", SecretName, err)
	}
	patch, err := bundlePatch(config, r.bundle)
	if err != nil || patch == nil {
		return err
	}
	if _, err := m.configs().Patch(ctx, m.o.Configuration, types.JSONPatchType, patch, metav1.PatchOptions{FieldManager: fieldManager}); err != nil {
		return fmt.Errorf("writing the CA bundle into MutatingWebhookConfiguration %s: %w", m.o.Configuration, err)
	}
	m.o.Log.Info("Wrote the CA bundle", "webhookConfiguration", m.o.Configuration, "cas", len(r.bundle))
	return nil
}

// bundlePatch is the JSON patch that gives the configuration the bundle, and fails
// if that has changed since; nil if there is nothing to change.
func bundlePatch(config *admissionregistrationv1.MutatingWebhookConfiguration, cas []*x509.Certificate) ([]byte, error) {
	bundle, err := cert.EncodeCertificates(cas...)
	if err != nil {
		return nil, fmt.Errorf("encoding CAs: %w", err)
	}
	if !lacks(config, bundle) {
		return nil, nil
	}
	if config.ResourceVersion == "" {
		return nil, errors.New("the webhook configuration has no resourceVersion")
	}
	type operation struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value any    `json:"value"`
	}
	// A resourceVersion that is another one by now makes it a conflict.
	patch := []operation{{"replace", "/metadata/resourceVersion", config.ResourceVersion}}
	for i := range config.Webhooks {
		patch = append(patch, operation{"add", fmt.Sprintf("/webhooks/%d/clientConfig/caBundle", i), bundle})
	}
	return json.Marshal(patch)
}
