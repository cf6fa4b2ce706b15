// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/internal/text"
	"github.com/prebind/prebind/policy/v1alpha1"
)

const (
	// checkInterval is the time after which the leader compares all statuses. A new leader writes them
	// within this time.
	checkInterval = 5 * time.Second
	// writeTimeout limits the write of one status.
	writeTimeout = 10 * time.Second
	// maxConditionMessage is the maximum length of the message of a condition, in bytes, without an ellipsis.
	maxConditionMessage = 32<<10 - len("…")
)

// Reasons of the events on BindPolicies and, for ReasonAudited, on pods. They are stable.
const (
	// ReasonNotReady: the policy cannot be evaluated, for the reason that the event contains.
	ReasonNotReady = "BindPolicyNotReady"
	// ReasonInForce: the policy was not ready, and is in force now.
	ReasonInForce = "BindPolicyInForce"
	// ReasonAudited: a policy in mode Audit would reject or delay the bind.
	ReasonAudited = "BindPolicyAudited"
)

// writeStatus writes the status of a generation, if the replica leads and the status differs. After a conflict, the next check writes it. It returns the
// error, and logs one that differs from before.
func (p *Plugin) writeStatus(ctx context.Context, g *generation, v verdict, before string) string {
	if v.reason == "" || !p.h.Leads() {
		return before
	}
	err := p.patchStatus(ctx, g, v)
	switch {
	case err == nil:
		return ""
	case ctx.Err() == nil && err.Error() != before:
		klog.FromContext(ctx).Error(err, "Could not write the status of a BindPolicy", "policy", g.Name)
	}
	return err.Error()
}

// patchStatus writes the status if it is about the generation in the cache.
func (p *Plugin) patchStatus(ctx context.Context, g *generation, v verdict) error {
	cached := &v1alpha1.BindPolicy{}
	err := p.h.Cached.Get(ctx, client.ObjectKeyFromObject(g), cached, bindPolicies)
	if err != nil || !g.isFor(cached) {
		return client.IgnoreNotFound(err)
	}
	changed := cached.DeepCopy()
	changed.Status = v.status(g.Generation, cached.Status, metav1.NewTime(p.h.Clock.Now()))
	if equality.Semantic.DeepEqual(cached.Status, changed.Status) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	err = p.h.Status.Status().Patch(ctx, changed, client.MergeFromWithOptions(cached.DeepCopy(), client.MergeFromWithOptimisticLock{}))
	switch {
	case err == nil:
		p.changedStatus(cached, v)
	case apierrors.IsNotFound(err) || apierrors.IsConflict(err):
		return nil
	}
	return err
}

// status returns the status with the verdict.
func (v verdict) status(generation int64, now v1alpha1.BindPolicyStatus, at metav1.Time) v1alpha1.BindPolicyStatus {
	status := *now.DeepCopy()
	status.ObservedGeneration = generation
	ready := metav1.ConditionFalse
	if v.reason == v1alpha1.ReasonInForce {
		ready = metav1.ConditionTrue
	}
	meta.SetStatusCondition(&status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionReady, Status: ready, ObservedGeneration: generation, LastTransitionTime: at,
		Reason: v.reason, Message: text.Clip(v.message, maxConditionMessage),
	})
	status.TypeChecking = nil
	if len(v.warnings) > 0 {
		status.TypeChecking = &v1alpha1.TypeChecking{ExpressionWarnings: v.warnings}
	}
	return status
}

// changedStatus records an event when the policy stops being ready, and when it is in force after that.
func (p *Plugin) changedStatus(before *v1alpha1.BindPolicy, v verdict) {
	was := meta.FindStatusCondition(before.Status.Conditions, v1alpha1.ConditionReady)
	failed := was != nil && was.Status == metav1.ConditionFalse
	switch inForce := v.reason == v1alpha1.ReasonInForce; {
	case !inForce && (!failed || was.Reason != v.reason):
		p.h.Events.Eventf(reference(before.Name, before.UID), nil, corev1.EventTypeWarning, ReasonNotReady, "Compiling", "%s", text.Clip(v.reason+": "+v.message, maxNote))
	case inForce && failed:
		p.h.Events.Eventf(reference(before.Name, before.UID), nil, corev1.EventTypeNormal, ReasonInForce, "Compiling", "%s", text.Clip(v.message, maxNote))
	}
}

// maxNote is the maximum length of the note of an event, in bytes, without an ellipsis.
const maxNote = 1024 - len("…")

// reference returns the reference to a policy for events.
func reference(name string, uid types.UID) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.Kind.Kind, Name: name, UID: uid}
}
