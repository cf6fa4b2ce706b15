// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package attempt

import (
	"context"
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/prebind/prebind/binder/framework"
)

// persistence is how a rollback, and the read before it, is repeated when it fails: first
// after 100 ms, then with doubling pauses, for seven minutes.
func persistence() wait.Backoff {
	return wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.1, Steps: 13}
}

// rollBack rolls back the plugins whose PreBind was started, in reverse order, unless the
// live pod is bound to the node and uses their writes.
func (s *Set) rollBack(ctx context.Context, a *Attempt) {
	ctx = context.WithoutCancel(ctx)
	log := klog.FromContext(ctx).WithValues("attempt", a.id)
	if len(a.ran) == 0 {
		return
	}
	var pod *corev1.Pod
	err := persistently(ctx, func() (err error) {
		pod, err = s.o.Runner.LivePod(ctx, s.present(a).Pod())
		return err
	})
	if err != nil {
		log.Error(err, "Not rolled back: the API server did not return the pod")
		return
	}
	if pod != nil && pod.UID == a.key.Pod && pod.Spec.NodeName == a.key.Node {
		s.commit(ctx, a)
		return
	}
	for _, r := range slices.Backward(a.ran) {
		if _, ok := r.Plugin.(framework.RollBacker); !ok {
			continue
		}
		// The plugins of a round share its context.
		before := len(r.Context.Undone())
		err := persistently(ctx, func() error { return s.o.Runner.RollBack(ctx, r.Plugin, r.Context) })
		s.o.Observer.RolledBack(r.Plugin.Name(), err)
		if err != nil {
			log.Error(err, "Rollback failed, the writes of the plugin remain", "plugin", r.Plugin.Name())
		}
		if pod != nil && pod.UID == a.key.Pod {
			s.o.Runner.ReportRolledBack(pod, a.key.Node, r.Plugin.Name(), r.Context.Undone()[before:])
		}
	}
	log.V(2).Info("Rolled back")
}

// persistently repeats f until it succeeds, and returns its last error if it never does.
func persistently(ctx context.Context, f func() error) error {
	var last error
	err := wait.ExponentialBackoffWithContext(ctx, persistence(), func(context.Context) (bool, error) {
		last = f()
		return last == nil, nil
	})
	if err == nil {
		return nil
	}
	return errors.Join(last, err)
}

// commit calls PostBind of the plugins: the pod is bound.
func (s *Set) commit(ctx context.Context, a *Attempt) {
	for _, r := range a.ran {
		if err := s.o.Runner.PostBind(context.WithoutCancel(ctx), r.Plugin, r.Context); err != nil {
			klog.FromContext(ctx).Error(err, "PostBind failed", "plugin", r.Plugin.Name(), "attempt", a.id)
		}
	}
}
