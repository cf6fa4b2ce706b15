// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/webhook/certificates"
)

// needsOfCertificates returns the permissions for self-managed certificates: those of the shipped role, with
// the name of the webhook configuration that the flag gives.
func needsOfCertificates(o certificates.Options, namespace string) ([]needs, error) {
	if !o.SelfManaged {
		return nil, nil
	}
	shipped, err := framework.Shipped("certificates/self-managed")
	all := allOf(shipped, namespace)
	for i := range all {
		if all[i].Resource == "mutatingwebhookconfigurations" {
			all[i].Name = o.WebhookConfiguration
		}
	}
	return []needs{{of: "--self-managed-certs", advice: "apply the component certificates/self-managed", permissions: all}}, err
}
