// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package certificates

import (
	"crypto/x509"
	"fmt"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/client-go/util/cert"
)

// injectedByOthers is the prefix of the annotations that make cert-manager write the CA bundle.
const injectedByOthers = "cert-manager.io/inject-"

// injected returns the CAs in the bundle of the configuration. Each write sets the same bundle in all of its webhooks.
func injected(config *admissionregistrationv1.MutatingWebhookConfiguration) []*x509.Certificate {
	if len(config.Webhooks) == 0 {
		return nil
	}
	// The API server trusts no CA of an invalid bundle.
	all, _ := cert.ParseCertsPEM(config.Webhooks[0].ClientConfig.CABundle)
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
