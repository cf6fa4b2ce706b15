// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package bindpolicy

import (
	"bytes"
	"context"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// bindingWebhooks and policyWebhooks are the names of the webhook configurations for Bindings and for BindPolicies.
	bindingWebhooks = "prebind"
	policyWebhooks  = "prebind-policy"
	// bundleInterval is the time after which the leader compares their CA bundles.
	bundleInterval = 5 * time.Second
)

// trust copies the CA bundle of the webhook configuration for Bindings to that for BindPolicies until the context ends, if the replica leads. So every
// source of certificates writes the bundle to one object only.
func (p *Plugin) trust(ctx context.Context) {
	failed := ""
	for {
		if p.h.Leads == nil || p.h.Leads() {
			switch err := p.copyBundle(ctx); {
			case err == nil:
				failed = ""
			case ctx.Err() == nil && err.Error() != failed:
				failed = err.Error()
				klog.FromContext(ctx).Error(err, "Could not copy the CA bundle, so the API server can reject changes of BindPolicies", "validatingWebhookConfiguration", policyWebhooks)
			}
		}
		timer := p.h.Clock.NewTimer(bundleInterval)
		select {
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// copyBundle copies the CA bundle once, if it differs. A missing configuration is not an error.
func (p *Plugin) copyBundle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	to := &admissionregistrationv1.ValidatingWebhookConfiguration{}
	if err := p.h.Live.Get(ctx, client.ObjectKey{Name: policyWebhooks}, to); err != nil {
		return client.IgnoreNotFound(err)
	}
	from := &admissionregistrationv1.MutatingWebhookConfiguration{}
	if err := p.h.Live.Get(ctx, client.ObjectKey{Name: bindingWebhooks}, from); err != nil || len(from.Webhooks) == 0 {
		return client.IgnoreNotFound(err)
	}
	bundle, changed := from.Webhooks[0].ClientConfig.CABundle, to.DeepCopy()
	differs := false
	for i := range changed.Webhooks {
		c := &changed.Webhooks[i].ClientConfig
		differs = differs || !bytes.Equal(c.CABundle, bundle)
		c.CABundle = bundle
	}
	if !differs {
		return nil
	}
	return client.IgnoreNotFound(p.h.Writer.Patch(ctx, changed, client.MergeFromWithOptions(to, client.MergeFromWithOptimisticLock{})))
}
