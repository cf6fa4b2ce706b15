// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/prebind/prebind/binder/framework"
)

const (
	// readAgain is the pause after a read of the API server that failed, and
	// readTakes what a read may take.
	readAgain = 2 * time.Second
	readTakes = 10 * time.Second
)

// outcome is what became of a bind that was allowed.
type outcome string

const (
	// outcomePending: it may still come about.
	outcomePending outcome = "pending"
	// outcomeBound: the pod is bound to the node by this attempt.
	outcomeBound outcome = "bound"
	// outcomeBoundByOther: it is bound to the node, by another attempt. What was
	// written for it is in use, and nothing of it is this attempt's any more.
	outcomeBoundByOther outcome = "bound by another attempt"
	// outcomeNotBound: it will not come about.
	outcomeNotBound outcome = "not bound"
	// outcomeAgain: the scheduler posts the Binding again, with something to do.
	outcomeAgain outcome = "again"
	// outcomeLeft: the process ends.
	outcomeLeft outcome = "left"
)

// bindOf is what an attempt knows of its bind.
type bindOf struct {
	pod     types.UID
	node    string
	attempt string
	// since is when a call was last told to go ahead.
	since time.Time
}

// judge decides on the outcome by the live pod, which is nil when it is gone. It
// is pure. attemptKey is the annotation that holds the attempt.
func judge(b bindOf, live *corev1.Pod, attemptKey string, now time.Time) outcome {
	switch framework.WhereaboutsOf(live, b.pod, b.node) {
	case framework.BoundHere:
		if live.Annotations[attemptKey] == b.attempt {
			return outcomeBound
		}
		return outcomeBoundByOther
	case framework.Pending:
		if now.Sub(b.since) <= framework.BindSettles {
			return outcomePending
		}
	case framework.Gone, framework.Replaced, framework.BoundElsewhere:
	}
	return outcomeNotBound
}

// follow watches a bind that may be on its way until its outcome is known. It
// reads the API server when the pod has left the cache of pending pods, and before
// it gives up. When it returns the attempt takes no calls any more, unless there is
// another round to run.
func (s *attempts) follow(ctx context.Context, a *attempt) outcome {
	pod := podOf(s.present(a))
	changed := s.changes.Subscribe(framework.RefTo(&corev1.Pod{}, pod.Namespace, pod.Name))
	defer changed.Close()
	for {
		bind, again := s.bindOf(a)
		if again {
			return outcomeAgain
		}
		now := s.clock.Now()
		pause := bind.since.Add(framework.BindSettles).Sub(now) + time.Millisecond
		if pause <= 0 || !s.stillPending(ctx, pod, bind.pod) {
			live, err := s.read(ctx, pod)
			if err != nil {
				klog.FromContext(ctx).V(2).Info("Cannot see yet what became of a bind", "attempt", a.id, "reason", err.Error())
				pause = readAgain
			} else if o := judge(bind, live, s.attemptKey, now); o != outcomePending {
				if !s.close(a, bind) {
					// A call was told to go ahead while the API server was asked.
					continue
				}
				klog.FromContext(ctx).V(2).Info("A bind came to its outcome", "attempt", a.id, "outcome", o)
				return o
			}
		}
		timer := s.clock.NewTimer(max(pause, time.Millisecond))
		select {
		case <-changed.C():
		case <-a.poke:
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
			return outcomeLeft
		}
		timer.Stop()
	}
}

// bindOf returns what judge needs, or that another round is to be run.
func (s *attempts) bindOf(a *attempt) (bindOf, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return bindOf{pod: a.key.pod, node: a.key.node, attempt: a.id, since: a.since}, a.phase == preparing
}

// close takes no calls any more, unless one has come since the bind was looked at.
func (s *attempts) close(a *attempt, bind bindOf) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.phase == preparing || !a.since.Equal(bind.since) {
		return false
	}
	a.phase = undoing
	return true
}

// stillPending says whether the cache holds the pod as one that can be bound.
func (s *attempts) stillPending(ctx context.Context, name types.NamespacedName, uid types.UID) bool {
	pod := &corev1.Pod{}
	err := s.cached.Get(ctx, name, pod)
	return err == nil && pod.UID == uid && pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil
}

// read returns the live pod, or nil when there is none.
func (s *attempts) read(ctx context.Context, name types.NamespacedName) (*corev1.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, readTakes)
	defer cancel()
	pod := &corev1.Pod{}
	s.recorder.ReadLive("", "Pod", ReadOutcome)
	err := s.live.Get(ctx, name, pod)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return pod, err
}
