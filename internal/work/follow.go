// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package work

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/prebind/prebind/internal/notify"
	"github.com/prebind/prebind/internal/podstate"
)

// readAgain is the pause after the first read of the API server that failed, or that contradicts the cache. It doubles up to readAtLeast: the
// cache never has a pod that is too large, whose changes the tenant determines.
const (
	readAgain   = 2 * time.Second
	readAtLeast = 10 * time.Second
)

// follow waits until the bind is over, and then confirms the writes or rolls them back. It
// reads the live pod when the pod has left the cache of pending pods, and before every
// rollback.
func (s *Set) follow(ctx context.Context, e *Entry) {
	defer s.forget(e)
	changed := s.o.Changes.Subscribe(notify.RefTo(&corev1.Pod{}, e.pod.Namespace, e.pod.Name))
	defer changed.Close()
	pause, again := readAgain, time.Time{}
	for {
		now := s.o.Clock.Now()
		over, until := s.due(e, now)
		if over || !now.Before(again) && !s.stillPending(ctx, e.pod, e.key.Pod) {
			live, err := s.LivePod(ctx, e.pod, ReadOutcome)
			if err != nil {
				klog.FromContext(ctx).V(2).Info("Could not read the outcome of a bind, will retry",
					"pod", e.pod.String(), "node", e.key.Node, "attempt", e.id, "reason", err.Error())
			} else if at := podstate.Of(live, e.key.Pod, e.key.Node); s.close(e, at, now) {
				s.settle(ctx, e, at, live)
				return
			}
			again = now.Add(pause)
			if err == nil {
				pause = min(2*pause, readAtLeast)
			}
		}
		if now.Before(again) && (over || until.IsZero() || again.Before(until)) {
			until = again
		}
		if !s.sleep(ctx, changed, until) {
			return
		}
	}
}

// due returns whether the follower has to look at the live pod, and until when it need not, even if nothing changes. Zero
// means always.
func (s *Set) due(e *Entry, now time.Time) (over bool, until time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case e.cause != nil:
		until = e.open
	case e.calls == 0:
		until = e.due
	}
	return e.over(now), until
}

// close closes the entry if the bind is over, and returns whether it is. The state is that of the live pod, which was read after the
// time: a call that was allowed shortly before can have bound the pod since.
func (s *Set) close(e *Entry, at podstate.State, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at == podstate.Pending && !e.over(now) {
		return false
	}
	e.closed = true
	outcome := NotBound
	if at == podstate.BoundHere {
		outcome = Bound
	}
	if !e.open.IsZero() {
		s.o.Recorder.AttemptEnded(outcome)
	}
	return true
}

// stillPending returns whether the cache holds the pod as one that can be bound.
func (s *Set) stillPending(ctx context.Context, name types.NamespacedName, uid types.UID) bool {
	pod := &corev1.Pod{}
	err := s.o.Cached.Get(ctx, name, pod)
	return err == nil && pod.UID == uid && pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil
}

// readTimeout limits one read of a pod from the API server.
const readTimeout = 10 * time.Second

// LivePod returns the pod from the API server, or nil if there is none. The reason is one of those of Recorder.ReadLive.
func (s *Set) LivePod(ctx context.Context, name types.NamespacedName, reason string) (*corev1.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	pod := &corev1.Pod{}
	s.o.Recorder.ReadLive("Pod", reason)
	err := s.o.Live.Get(ctx, name, pod)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	pod.ManagedFields = nil
	return pod, err
}

// sleep returns false when the process ends.
func (s *Set) sleep(ctx context.Context, changed *notify.Subscription, until time.Time) bool {
	var over <-chan time.Time
	if !until.IsZero() {
		timer := s.o.Clock.NewTimer(max(until.Sub(s.o.Clock.Now()), 0) + time.Millisecond)
		defer timer.Stop()
		over = timer.C()
	}
	select {
	case <-changed.C():
	case <-over:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

// settle confirms the writes of a closed entry, or rolls them back.
func (s *Set) settle(ctx context.Context, e *Entry, at podstate.State, live *corev1.Pod) {
	// A write in progress ends first. Later ones find that the entry is closed: they must not wait for the end of the rollback.
	e.writing <- struct{}{}
	<-e.writing
	klog.FromContext(ctx).V(2).Info("The work on a bind ends",
		"pod", e.pod.String(), "node", e.key.Node, "attempt", e.id, "state", at, "cause", e.cause)
	if at == podstate.BoundHere {
		s.commit(ctx, e, live)
	} else {
		s.undo(ctx, e, live)
	}
}

// commit calls PostBind of the plugins, in order. After an error the mark remains, for the sweeper.
func (s *Set) commit(ctx context.Context, e *Entry, bound *corev1.Pod) {
	for _, p := range e.writers {
		if err := s.postBind(context.WithoutCancel(ctx), p, e.mark(), bound); err != nil {
			klog.FromContext(ctx).Error(err, "PostBind failed, a sweep will repeat it", "plugin", p.Name(), "attempt", e.id)
		}
	}
}

// undo calls PreBindRollBack of the plugins in reverse order. After an error the mark remains, for the sweeper. It does
// not try again itself, because a bind that is posted again waits until it returns.
func (s *Set) undo(ctx context.Context, e *Entry, live *corev1.Pod) {
	for _, p := range slices.Backward(e.writers) {
		err := s.rollBack(context.WithoutCancel(ctx), p, e.mark(), live)
		s.o.Recorder.RolledBack(p.Name(), err)
		if err != nil {
			klog.FromContext(ctx).Error(err, "Rollback failed, a sweep will repeat it", "plugin", p.Name(), "attempt", e.id)
		}
	}
}
