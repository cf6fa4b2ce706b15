// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

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

const (
	// rollBackTimeout bounds one call of a plugin's PreBindRollBack.
	rollBackTimeout = 30 * time.Second
	postBindTimeout = 30 * time.Second
)

// persistence is how a roll-back, and the read before it, is repeated when it
// fails: at first after a tenth of a second, then ever more slowly, for seven
// minutes.
func persistence() wait.Backoff {
	return wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.1, Steps: 13}
}

// undo rolls back the plugins whose PreBind was started, in reverse order, unless
// the live pod is bound to the node: then what they wrote is in use.
func (s *attempts) undo(ctx context.Context, a *attempt) {
	ctx = context.WithoutCancel(ctx)
	log := klog.FromContext(ctx).WithValues("attempt", a.id)
	if len(a.ran) == 0 {
		return
	}
	pod, err := s.readPersistently(ctx, a)
	if err != nil {
		log.Error(err, "What this attempt wrote is left as it is: the API server did not tell whether the pod is bound")
		return
	}
	if pod != nil && pod.UID == a.key.pod && pod.Spec.NodeName == a.key.node {
		s.commit(ctx, a)
		return
	}
	for _, r := range slices.Backward(a.ran) {
		undoer, ok := r.plugin.(framework.RollBacker)
		if !ok {
			continue
		}
		// The plugins of a round share its context.
		before := len(r.bc.Undone())
		err := s.rollBack(ctx, r, undoer)
		s.recorder.RolledBack(r.plugin.Name(), err)
		if err != nil {
			log.Error(err, "Rolling back failed, what the plugin wrote is left as it is", "plugin", r.plugin.Name())
		}
		if pod != nil && pod.UID == a.key.pod {
			tellUndone(s.events, pod, a.key.node, r.plugin.Name(), r.bc.Undone()[before:])
		}
	}
	log.V(2).Info("Rolled back")
}

func (s *attempts) readPersistently(ctx context.Context, a *attempt) (*corev1.Pod, error) {
	name := podOf(s.present(a))
	var pod *corev1.Pod
	err := persistently(ctx, func() (err error) {
		pod, err = s.read(ctx, name)
		return err
	})
	return pod, err
}

// rollBack undoes one plugin. It is repeated when it fails or panics.
func (s *attempts) rollBack(ctx context.Context, r ran, undoer framework.RollBacker) error {
	return persistently(ctx, func() error {
		ctx, cancel := context.WithTimeout(ctx, rollBackTimeout)
		defer cancel()
		return step(ctx, s.recorder, stepOf(StepPreBindRollBack, r.plugin.Name(), r.bc), func(ctx context.Context) error {
			return preBindRollBack(ctx, undoer, r.bc)
		})
	})
}

// persistently repeats f until it succeeds, and returns its last error when it
// never does.
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
