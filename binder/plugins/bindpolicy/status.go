// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package bindpolicy

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/policy/v1alpha1"
)

const (
	// checkInterval is the time after which the leader compares all statuses. A new leader writes them
	// within this time.
	checkInterval = 5 * time.Second
	// writeTimeout limits the write of one status.
	writeTimeout = 10 * time.Second
	// maxConditionMessage is the maximum length of the message of a condition, in bytes.
	maxConditionMessage = 32 << 10
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

// statuses writes the status of the policies, if the replica leads.
type statuses struct {
	h framework.Handle
	// wanted contains the generations with a verdict, by name. changed is signaled when there are new ones.
	wanted  atomic.Pointer[map[string]generation]
	changed chan struct{}
	// failures contains the last error of each policy whose status could not be written, so that it is logged once.
	failures map[string]string
}

func newStatuses(h framework.Handle) *statuses {
	return &statuses{h: h, changed: make(chan struct{}, 1), failures: map[string]string{}}
}

// publish sets the wanted statuses. It does not block.
func (s *statuses) publish(wanted map[string]generation) {
	s.wanted.Store(&wanted)
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

func (s *statuses) run(ctx context.Context) {
	for {
		timer := s.h.Clock.NewTimer(checkInterval)
		select {
		case <-s.changed:
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
			return
		}
		timer.Stop()
		s.write(ctx)
	}
}

// write writes the statuses that differ.
func (s *statuses) write(ctx context.Context) {
	wanted := s.wanted.Load()
	if wanted == nil || s.h.Leads != nil && !s.h.Leads() {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(*wanted)) {
		if ctx.Err() != nil {
			return
		}
		err := s.writeOne(ctx, name, (*wanted)[name])
		switch {
		case err == nil:
			delete(s.failures, name)
		case ctx.Err() == nil && s.failures[name] != err.Error():
			s.failures[name] = err.Error()
			klog.FromContext(ctx).Error(err, "Could not write the status of a BindPolicy", "policy", name)
		}
	}
}

// writeOne writes the status of one policy, if it is about the generation in the cache. After a conflict, the
// next check writes it.
func (s *statuses) writeOne(ctx context.Context, name string, g generation) error {
	cached := &v1alpha1.BindPolicy{}
	err := s.h.Cached.Get(ctx, client.ObjectKey{Name: name}, cached)
	if err != nil || !g.isFor(cached) {
		return client.IgnoreNotFound(err)
	}
	status := g.verdict.status(g.generation, cached.Status, metav1.NewTime(s.h.Clock.Now()))
	if equality.Semantic.DeepEqual(cached.Status, status) {
		return nil
	}
	changed := cached.DeepCopy()
	changed.Status = status
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	patch := client.MergeFromWithOptions(cached.DeepCopy(), client.MergeFromWithOptimisticLock{})
	if err := s.h.Status.Status().Patch(ctx, changed, patch); err != nil {
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return nil
		}
		return err
	}
	s.event(cached, cached.Status, status)
	return nil
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
		Reason: v.reason, Message: clip(v.message, maxConditionMessage),
	})
	status.TypeChecking = nil
	if len(v.warnings) > 0 {
		status.TypeChecking = &v1alpha1.TypeChecking{ExpressionWarnings: v.warnings}
	}
	return status
}

// event records that the policy is no longer ready, or that it is in force again.
func (s *statuses) event(b *v1alpha1.BindPolicy, before, after v1alpha1.BindPolicyStatus) {
	was, is := meta.FindStatusCondition(before.Conditions, v1alpha1.ConditionReady), meta.FindStatusCondition(after.Conditions, v1alpha1.ConditionReady)
	if s.h.Events == nil || is == nil {
		return
	}
	failed := was != nil && was.Status == metav1.ConditionFalse
	switch {
	case is.Status == metav1.ConditionFalse && (!failed || was.Reason != is.Reason):
		s.h.Events.Eventf(reference(b), nil, corev1.EventTypeWarning, ReasonNotReady, "Compiling", "%s", clip(is.Reason+": "+is.Message, maxNote))
	case is.Status == metav1.ConditionTrue && failed:
		s.h.Events.Eventf(reference(b), nil, corev1.EventTypeNormal, ReasonInForce, "Compiling", "%s", clip(is.Message, maxNote))
	}
}

// maxNote is the maximum length of the note of an event, in bytes.
const maxNote = 1024

// reference returns the reference to a policy for events.
func reference(b *v1alpha1.BindPolicy) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.Kind.Kind, Name: b.Name, UID: b.UID}
}

// clip returns at most that many bytes of the text, and marks that it is shortened.
func clip(text string, most int) string {
	const mark = "…"
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most-len(mark)], "") + mark
}
