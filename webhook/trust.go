// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// policyWebhooks is the name of the webhook configuration for BindPolicies.
	policyWebhooks = "prebind-policy"
	// trustInterval is the time after which the leader compares their CA bundles.
	trustInterval = 5 * time.Second
)

// Trust copies the CA bundle of the webhook configuration for Bindings to that for BindPolicies, if the replica leads. So every source of certificates
// writes the bundle to one object only. It does not need the plugin policy: as long as the configuration exists, the API server calls it.
type Trust struct {
	// Reader reads from the API server.
	Reader client.Reader
	Writer client.Writer
	Leads  func() bool
	// From is the name of the webhook configuration for Bindings.
	From string
}

// Run copies the bundle until the context ends.
func (t *Trust) Run(ctx context.Context) {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		if !t.Leads() {
			return
		}
		if err := t.copyBundle(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Could not copy the CA bundle, so the API server can reject changes of BindPolicies", "validatingWebhookConfiguration", policyWebhooks)
		}
	}, trustInterval)
}

// copyBundle copies the CA bundle once, if it differs. If the configuration or the role does not exist, the component of the plugin policy is not
// installed.
func (t *Trust) copyBundle(ctx context.Context) error {
	to := &admissionregistrationv1.ValidatingWebhookConfiguration{}
	if err := t.Reader.Get(ctx, client.ObjectKey{Name: policyWebhooks}, to); err != nil {
		if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
			return nil
		}
		return err
	}
	from := &admissionregistrationv1.MutatingWebhookConfiguration{}
	if err := t.Reader.Get(ctx, client.ObjectKey{Name: t.From}, from); err != nil {
		return client.IgnoreNotFound(err)
	}
	// A configuration that was just applied again, as after break glass, has no bundle. The copy of the earlier one is still valid.
	if len(from.Webhooks) == 0 || len(from.Webhooks[0].ClientConfig.CABundle) == 0 {
		return nil
	}
	before := to.DeepCopy()
	for i := range to.Webhooks {
		to.Webhooks[i].ClientConfig.CABundle = from.Webhooks[0].ClientConfig.CABundle
	}
	if equality.Semantic.DeepEqual(before, to) {
		return nil
	}
	return client.IgnoreNotFound(t.Writer.Patch(ctx, to, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})))
}
