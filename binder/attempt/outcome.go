// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package attempt

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/prebind/prebind/binder/framework"
)

// ReadAgain is the pause after a read of the API server that failed.
const ReadAgain = 2 * time.Second

// outcome is the result of a bind that was allowed.
type outcome string

const (
	// outcomePending: the pod may still be bound.
	outcomePending outcome = "pending"
	// outcomeBound: the pod is bound to the node by this attempt.
	outcomeBound outcome = "bound"
	// outcomeBoundByOther: another attempt bound it to the node. The pod uses the writes, and
	// this attempt owns none of them.
	outcomeBoundByOther outcome = "bound by another attempt"
	// outcomeNotBound: the pod will not be bound.
	outcomeNotBound outcome = "not bound"
	// outcomeAgain: the scheduler posted the Binding again, and a plugin has work to do.
	outcomeAgain outcome = "again"
	// outcomeLeft: the process ends.
	outcomeLeft outcome = "left"
)

// allowedBind is a bind whose outcome is open.
type allowedBind struct {
	pod     types.UID
	node    string
	attempt string
	// since is when a call was last allowed.
	since time.Time
}

// outcomeOf returns the outcome by the live pod, which is nil if it is gone. It is pure.
func outcomeOf(b allowedBind, live *corev1.Pod, now time.Time) outcome {
	switch framework.WhereaboutsOf(live, b.pod, b.node) {
	case framework.BoundHere:
		if live.Annotations[framework.AttemptAnnotation] == b.attempt {
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

// follow waits for the outcome of a bind. It reads from the API server when the pod has left
// the cache of pending pods, and before it decides that the pod is not bound. When it
// returns, the attempt accepts no calls, unless there is another round to run.
func (s *Set) follow(ctx context.Context, a *Attempt) outcome {
	pod := s.present(a).Pod()
	changed := s.o.Changes.Subscribe(framework.RefTo(&corev1.Pod{}, pod.Namespace, pod.Name))
	defer changed.Close()
	for {
		bind, again := s.openBind(a)
		if again {
			return outcomeAgain
		}
		now := s.o.Clock.Now()
		pause := bind.since.Add(framework.BindSettles).Sub(now) + time.Millisecond
		if pause <= 0 || !s.o.Runner.StillPending(ctx, pod, bind.pod) {
			live, err := s.o.Runner.LivePod(ctx, pod)
			if err != nil {
				klog.FromContext(ctx).V(2).Info("Could not read the outcome of a bind, will retry", "attempt", a.id, "reason", err.Error())
				pause = ReadAgain
			} else if o := outcomeOf(bind, live, now); o != outcomePending {
				if !s.close(a, bind) {
					// A call was allowed during the read.
					continue
				}
				klog.FromContext(ctx).V(2).Info("The outcome of a bind is known", "attempt", a.id, "outcome", o)
				return o
			}
		}
		timer := s.o.Clock.NewTimer(max(pause, time.Millisecond))
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

// openBind returns the bind that is followed, and whether there is another round to run.
func (s *Set) openBind(a *Attempt) (allowedBind, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return allowedBind{pod: a.key.Pod, node: a.key.Node, attempt: a.id, since: a.since}, a.phase == Preparing
}

// close stops accepting calls, unless one was allowed since the bind was read.
func (s *Set) close(a *Attempt, bind allowedBind) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.phase == Preparing || !a.since.Equal(bind.since) {
		return false
	}
	a.phase = RollingBack
	return true
}
