// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/prebind/prebind/binder/api"
)

const (
	// sweepEvery is the pause between two sweeps.
	sweepEvery = 10 * time.Second
	// sweepGrace is how long the mark of a replica that is gone is left to the
	// calls that go on with it on another: longer than the API server may still be
	// at a bind that was allowed, and than any client waits before it calls again.
	sweepGrace = time.Minute
)

// Replicas tells which replicas live.
type Replicas interface {
	// Living returns the replicas that were heard of lately. The caller owns the map.
	Living(ctx context.Context) (map[string]bool, error)
}

// verdict is what becomes of a mark.
type verdict string

const (
	// verdictKeep leaves it to whoever works on it, or may still come to.
	verdictKeep verdict = "keep"
	// verdictCommit confirms it: the pod is bound to the node.
	verdictCommit verdict = "commit"
	// verdictRollBack undoes what it stands for.
	verdictRollBack verdict = "roll back"
)

// decide is the whole of recovery in one pure table: what becomes of a mark, by
// the live pod (nil when it is gone), whether the mark's replica lives, and for
// how long the mark has been known.
func decide(m api.Mark, pod *corev1.Pod, replicaLives bool, known time.Duration) verdict {
	switch {
	case replicaLives:
		// It follows its binds by itself.
		return verdictKeep
	case pod == nil || pod.UID != m.PodUID:
		return verdictRollBack
	case pod.Spec.NodeName == m.Node:
		// Whichever attempt bound it: what was written is in use.
		return verdictCommit
	case pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil:
		return verdictRollBack
	case known <= sweepGrace:
		// The bind may be on its way, or be called for again on another replica.
		return verdictKeep
	default:
		return verdictRollBack
	}
}

// Sweeper brings the writes of attempts to an end whose replica is gone. One
// replica at a time should run it.
type Sweeper struct {
	engine   *Engine
	replicas Replicas
	// mu is held by Run.
	mu sync.Mutex
	// known is since when each mark has been known, by this sweeper's own clock.
	known map[sweptMark]time.Time
}

type sweptMark struct {
	plugin string
	mark   api.Mark
}

// NewSweeper returns the sweeper of the engine's plugins.
func NewSweeper(e *Engine, replicas Replicas) *Sweeper {
	return &Sweeper{engine: e, replicas: replicas, known: map[sweptMark]time.Time{}}
}

// Run sweeps until the context ends. It may be called again then; it waits until
// an earlier call has returned.
func (s *Sweeper) Run(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.known)
	log := klog.FromContext(ctx)
	for {
		if err := s.sweep(ctx); err != nil {
			log.Error(err, "Could not look for what ended replicas left behind, will try again")
		}
		timer := s.engine.o.Clock.NewTimer(sweepEvery)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C():
		}
	}
}

// sweep decides on every mark once.
func (s *Sweeper) sweep(ctx context.Context) error {
	living, err := s.replicas.Living(ctx)
	if err != nil {
		return fmt.Errorf("asking which replicas live: %w", err)
	}
	living[s.engine.o.Replica] = true
	seen := map[sweptMark]bool{}
	var errs []error
	for _, p := range s.engine.o.Plugins {
		recoverer, ok := p.(api.Recoverer)
		if !ok {
			continue
		}
		marks, err := recoverer.Marks(ctx)
		if err != nil {
			errs = append(errs, fmt.Errorf("plugin %s: listing its marks: %w", p.Name(), err))
		}
		for _, m := range marks {
			key := sweptMark{plugin: p.Name(), mark: m}
			seen[key] = true
			if err := s.settle(ctx, p, key, living); err != nil {
				errs = append(errs, fmt.Errorf("plugin %s: %w", p.Name(), err))
			}
		}
	}
	for key := range s.known {
		if !seen[key] && len(errs) == 0 {
			delete(s.known, key)
		}
	}
	return errors.Join(errs...)
}

// settle does what is decided on one mark.
func (s *Sweeper) settle(ctx context.Context, p api.PreBinder, key sweptMark, living map[string]bool) error {
	now := s.engine.o.Clock.Now()
	since, ok := s.known[key]
	if !ok {
		since = now
		s.known[key] = now
	}
	m := key.mark
	lives := living[replicaOf(m.Attempt)]
	if lives {
		return nil
	}
	pod, err := s.engine.attempts.read(ctx, m.Pod)
	if err != nil {
		return fmt.Errorf("reading pod %s: %w", m.Pod, err)
	}
	v := decide(m, pod, lives, now.Sub(since))
	if v == verdictKeep {
		return nil
	}
	klog.FromContext(ctx).Info("Settling what an ended replica left behind",
		"plugin", p.Name(), "pod", m.Pod.String(), "node", m.Node, "attempt", m.Attempt, "verdict", v)
	bc := recovered(m)
	if v == verdictRollBack {
		ctx, cancel := context.WithTimeout(ctx, rollBackTimeout)
		defer cancel()
		return contained(ctx, func() error { return p.PreBindRollBack(ctx, bc) })
	}
	post, ok := p.(api.PostBinder)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, postBindTimeout)
	defer cancel()
	return contained(ctx, func() error {
		post.PostBind(ctx, bc)
		return nil
	})
}

// recovered is the context of a bind of which only the mark is left.
func recovered(m api.Mark) *api.BindContext {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: m.Pod.Namespace, Name: m.Pod.Name, UID: m.PodUID}}
	return &api.BindContext{
		Pod:       pod,
		Node:      &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: m.Node}},
		Binding:   &corev1.Binding{ObjectMeta: pod.ObjectMeta, Target: corev1.ObjectReference{Kind: "Node", Name: m.Node}},
		Attempt:   m.Attempt,
		Recovered: true,
	}
}
