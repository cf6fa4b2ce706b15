// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package work

import (
	"context"
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/notify"
	"github.com/prebind/prebind/internal/podstate"
)

// readAgain is the pause after a read of the API server that failed, or that contradicts the cache.
const readAgain = 2 * time.Second

// outcome is what the live pod and the state of an entry say about the bind.
type outcome string

const (
	// open: the pod may still be bound.
	open outcome = "open"
	// bound: the pod is bound to the node.
	bound outcome = "bound"
	// again: the last allowed call did not bind the pod, and a client is calling again.
	again outcome = "again"
	// ended: the pod is not bound, and nothing in progress can bind it.
	ended outcome = "ended"
)

// until is when the follower has to look at the live pod, even if nothing changes. Zero means
// never.
func (st state) until() time.Time {
	switch {
	case !st.allowed.IsZero():
		return st.allowed.Add(framework.BindSettles)
	case st.calls > 0:
		return time.Time{}
	default:
		return st.due
	}
}

// outcomeOf decides by the live pod, which is nil if it is gone. It is pure.
func outcomeOf(key Key, st state, live *corev1.Pod, now time.Time) outcome {
	switch podstate.Of(live, key.Pod, key.Node) {
	case podstate.BoundHere:
		return bound
	case podstate.Pending:
	case podstate.Gone, podstate.BoundElsewhere:
		return ended
	}
	past := !st.until().IsZero() && now.After(st.until())
	switch {
	case !st.allowed.IsZero() && past && st.calls > 0:
		return again
	case st.allowed.IsZero() && st.cause != nil, past:
		return ended
	default:
		return open
	}
}

// follow waits for the outcome of the bind, and then confirms the writes or rolls them back. It
// reads the live pod when the pod has left the cache of pending pods, and before every
// rollback.
func (s *Set) follow(ctx context.Context, e *Entry) {
	defer s.forget(e)
	log := klog.FromContext(ctx).WithValues("pod", e.pod.String(), "node", e.key.Node, "attempt", e.id)
	changed := s.o.Changes.Subscribe(notify.RefTo(&corev1.Pod{}, e.pod.Namespace, e.pod.Name))
	defer changed.Close()
	for {
		st, now := s.stateOf(e), s.o.Clock.Now()
		until := st.until()
		due := st.cause != nil && st.allowed.IsZero() || !until.IsZero() && now.After(until)
		if due || !s.stillPending(ctx, e.pod, e.key.Pod) {
			live, err := s.LivePod(ctx, e.pod, ReadOutcome)
			switch {
			case err != nil:
				log.V(2).Info("Could not read the outcome of a bind, will retry", "reason", err.Error())
			default:
				if o := outcomeOf(e.key, st, live, now); o != open && s.conclude(ctx, e, st, o, live) {
					return
				} else if o == open {
					break
				}
				// The entry has changed since.
				continue
			}
			until = now.Add(readAgain)
		}
		if !s.sleep(ctx, changed, until) {
			return
		}
	}
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

func (s *Set) stateOf(e *Entry) state {
	s.mu.Lock()
	defer s.mu.Unlock()
	return e.state
}

// conclude carries out the outcome, unless the entry has changed since the state was read. It returns
// whether the entry is over.
func (s *Set) conclude(ctx context.Context, e *Entry, st state, o outcome, live *corev1.Pod) bool {
	s.mu.Lock()
	switch {
	case e.state != st && o != bound:
		s.mu.Unlock()
		return false
	case o == again:
		e.allowed = time.Time{}
		s.mu.Unlock()
		return false
	}
	e.closed = true
	s.mu.Unlock()
	if !st.allowed.IsZero() {
		ended := NotBound
		if o == bound {
			ended = Bound
		}
		s.o.Recorder.AttemptEnded(ended)
	}
	// A write in progress ends first.
	e.writing <- struct{}{}
	klog.FromContext(ctx).V(2).Info("The work on a bind ends", "pod", e.pod.String(), "node", e.key.Node, "attempt", e.id, "outcome", o, "cause", st.cause)
	if o == bound {
		s.commit(ctx, e)
	} else {
		s.undo(ctx, e, live)
	}
	return true
}

// commit calls PostBind of the plugins, in order. After an error the mark remains, for the sweeper.
func (s *Set) commit(ctx context.Context, e *Entry) {
	for _, w := range e.writers {
		if err := s.postBind(context.WithoutCancel(ctx), w.plugin, e.mark()); err != nil {
			klog.FromContext(ctx).Error(err, "PostBind failed", "plugin", w.plugin.Name(), "attempt", e.id)
		}
	}
}

// persistence is how a rollback is repeated when it fails: first after 100 ms, then with doubling
// pauses, for seven minutes. After that, the sweeper repeats it.
func persistence() wait.Backoff {
	return wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.1, Steps: 13}
}

// undo calls PreBindRollBack of the plugins in reverse order.
func (s *Set) undo(ctx context.Context, e *Entry, live *corev1.Pod) {
	if live != nil && live.UID != e.key.Pod {
		live = nil
	}
	for _, w := range slices.Backward(e.writers) {
		var last error
		err := wait.ExponentialBackoffWithContext(ctx, persistence(), func(context.Context) (bool, error) {
			last = s.rollBack(context.WithoutCancel(ctx), w.plugin, e.mark(), live)
			s.o.Recorder.RolledBack(w.plugin.Name(), last)
			return last == nil, nil
		})
		if err != nil {
			klog.FromContext(ctx).Error(errors.Join(last, err), "Rollback failed, the writes of the plugin remain", "plugin", w.plugin.Name(), "attempt", e.id)
		}
	}
}
