// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package recovery commits or rolls back the writes that ended attempts left behind. Plugins list
// them as marks, and a sweeper settles the marks whose attempts are no longer in progress.
package recovery

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/runner"
	"github.com/prebind/prebind/binder/work"
)

// Grace is how long a sweep keeps the mark of a pending pod after the attempt's replica is gone. It
// is longer than framework.BindSettles, so that no allowed bind is still open, and longer than
// most gaps between two calls.
const Grace = time.Minute

const (
	// sweepEvery is the pause between two sweeps.
	sweepEvery = 10 * time.Second
	// sweepMarks limits the marks that one sweep settles, because each costs a read of its pod.
	// sweepTakes limits its time. The next sweep continues.
	sweepMarks = 200
	sweepTakes = 20 * time.Second
	// sweepErrors is how many errors of a sweep are logged.
	sweepErrors = 5
	// tidyEvery is the pause between two calls of Tidy.
	tidyEvery = 2 * time.Minute
)

// Replicas observes which replicas are alive.
type Replicas interface {
	// Observe watches the replicas until the context ends, independent of the time that
	// sweeps take.
	Observe(ctx context.Context)
	// Living returns the live replicas by recent observations. The caller owns the map.
	Living(ctx context.Context) (map[string]bool, error)
}

// Observer counts what sweeps settle. Its methods are called concurrently, and must not
// block.
type Observer interface {
	// Swept is called for each mark that a sweep settles: action is one of Actions, and err
	// why it must be retried, or nil.
	Swept(plugin, action string, err error)
}

// action is what a sweep does with a mark.
type action string

const (
	// actionKeep leaves it to its attempt, or to a later one.
	actionKeep action = "keep"
	// actionCommit confirms it: the pod is bound to the node.
	actionCommit action = "commit"
	// actionRollBack rolls it back.
	actionRollBack action = "roll back"
)

// Actions returns those that the Observer receives; the caller owns the slice.
func Actions() []string { return []string{string(actionCommit), string(actionRollBack)} }

// actionFor decides what to do with a mark, by the live pod (nil if it is gone), whether its
// attempt is in progress, and for how long that has been known to be false. It is pure.
func actionFor(m framework.Mark, pod *corev1.Pod, inProgress bool, orphaned time.Duration) action {
	if inProgress {
		return actionKeep
	}
	switch framework.WhereaboutsOf(pod, m.PodUID, m.Node) {
	case framework.BoundHere:
		// The pod uses the writes, whichever attempt bound it.
		return actionCommit
	case framework.Pending:
		if orphaned <= Grace {
			// The bind may be in progress, or another replica may receive the next call.
			return actionKeep
		}
	case framework.Gone, framework.Replaced, framework.BoundElsewhere:
	}
	return actionRollBack
}

// Options of a Sweeper. All fields but Replicas are required.
type Options struct {
	Runner   *runner.Runner
	Observer Observer
	// Replica is this one, and Replicas the others. Without Replicas, the Sweeper settles
	// marks of this replica only, and does not tidy.
	Replica  string
	Replicas Replicas
	// Working returns whether the attempt with this ID is in progress in this replica.
	Working func(attempt string) bool
	// Plugins are the enabled plugins.
	Plugins []framework.Plugin
	Clock   clock.WithDelayedExecution
}

// Sweeper commits or rolls back the writes of attempts that ended without doing so.
type Sweeper struct {
	o Options
	// mu is held by Run.
	mu sync.Mutex
	// tidied is the time of the last Tidy.
	tidied time.Time
	// orphans are the marks whose attempts are no longer in progress.
	orphans map[sweptMark]*orphan
	// sweeps counts the sweeps.
	sweeps int
}

type sweptMark struct {
	plugin string
	mark   framework.Mark
}

// New returns a Sweeper. It starts nothing. With Replicas, one replica at a time should run
// it; without, every replica runs one, for attempts that could not finish their own
// rollback, for example because the API server did not answer for long.
func New(o Options) *Sweeper {
	return &Sweeper{o: o, orphans: map[sweptMark]*orphan{}}
}

// Run sweeps until the context ends. It may be called again, and then waits for the earlier call.
func (s *Sweeper) Run(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.orphans)
	if s.o.Replicas != nil {
		var observing sync.WaitGroup
		defer observing.Wait()
		observing.Go(func() { s.o.Replicas.Observe(ctx) })
	}
	log := klog.FromContext(ctx)
	for {
		if err := s.sweep(ctx); err != nil {
			log.Error(err, "Sweep failed, will retry")
		}
		if err := s.tidy(ctx); err != nil {
			log.Error(err, "Tidy failed, will retry")
		}
		timer := s.o.Clock.NewTimer(sweepEvery)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C():
		}
	}
}

// sweep settles marks whose attempts are no longer in progress, within its limits. The next sweeps
// settle the rest.
func (s *Sweeper) sweep(ctx context.Context) error {
	living := map[string]bool{}
	if s.o.Replicas != nil {
		var err error
		if living, err = s.o.Replicas.Living(ctx); err != nil {
			return fmt.Errorf("reading the live replicas: %w", err)
		}
	}
	s.sweeps++
	began := s.o.Clock.Now()
	due, errs := s.due(ctx, living)
	failed := 0
	for _, m := range turns(due, sweepMarks) {
		if ctx.Err() != nil || s.o.Clock.Since(began) > sweepTakes {
			break
		}
		m.orphan.tried = s.sweeps
		if err := s.settle(ctx, m); err != nil {
			if failed++; failed <= sweepErrors {
				errs = append(errs, fmt.Errorf("plugin %s: %w", m.plugin.Name(), err))
			}
		}
	}
	if failed > sweepErrors {
		errs = append(errs, fmt.Errorf("and %d more", failed-sweepErrors))
	}
	return errors.Join(errs...)
}

// due returns the marks to settle, and records since when their attempts have not been in
// progress. Its cost is linear in the number of all marks, and it reads caches only.
func (s *Sweeper) due(ctx context.Context, living map[string]bool) (due []orphaned, errs []error) {
	orphans := map[sweptMark]*orphan{}
	for _, plugin := range s.o.Plugins {
		p, ok := plugin.(framework.PreBinder)
		if !ok {
			continue
		}
		marks, err := s.o.Runner.Marks(ctx, p)
		now := s.o.Clock.Now()
		for _, m := range marks {
			key := sweptMark{plugin: p.Name(), mark: m}
			if orphans[key] != nil || s.inProgress(m, living) {
				continue
			}
			o := s.orphans[key]
			if o == nil {
				o = &orphan{since: now}
			}
			orphans[key] = o
			if now.Sub(o.since) > Grace || !s.o.Runner.StillPending(ctx, m.Pod, m.PodUID) {
				due = append(due, orphaned{plugin: p, mark: m, orphan: o})
			}
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("plugin %s: listing its marks: %w", p.Name(), err))
			// The list may be incomplete.
			for key, o := range s.orphans {
				if key.plugin == p.Name() && orphans[key] == nil && !s.inProgress(key.mark, living) {
					orphans[key] = o
				}
			}
		}
	}
	s.orphans = orphans
	return due, errs
}

// tidy calls Tidy of the plugins, when it is time.
func (s *Sweeper) tidy(ctx context.Context) error {
	if s.o.Replicas == nil || s.o.Clock.Since(s.tidied) < tidyEvery {
		return nil
	}
	s.tidied = s.o.Clock.Now()
	var errs []error
	for _, p := range s.o.Plugins {
		if err := s.o.Runner.Tidy(ctx, p); err != nil {
			errs = append(errs, fmt.Errorf("plugin %s: %w", p.Name(), err))
		}
	}
	return errors.Join(errs...)
}

// inProgress returns whether the mark's attempt is in progress, or belongs to another sweeper.
func (s *Sweeper) inProgress(m framework.Mark, living map[string]bool) bool {
	replica, own := work.ReplicaOf(m.Attempt), s.o.Replica
	if s.o.Replicas == nil {
		return replica != own || s.o.Working(m.Attempt)
	}
	return replica == own || living[replica]
}

// settle decides on one mark and carries it out.
func (s *Sweeper) settle(ctx context.Context, o orphaned) error {
	p, m := o.plugin, o.mark
	pod, err := s.o.Runner.LivePod(ctx, m.Pod)
	if err != nil {
		return fmt.Errorf("reading pod %s: %w", m.Pod, err)
	}
	act := actionFor(m, pod, false, s.o.Clock.Since(o.orphan.since))
	if act == actionKeep {
		return nil
	}
	klog.FromContext(ctx).Info("Settling the writes of an ended attempt",
		"plugin", p.Name(), "pod", m.Pod.String(), "node", m.Node, "attempt", m.Attempt, "action", act)
	err = s.carryOut(ctx, act, p, m, pod)
	s.o.Observer.Swept(p.Name(), string(act), err)
	return err
}

// carryOut commits the mark, or rolls it back.
func (s *Sweeper) carryOut(ctx context.Context, act action, p framework.PreBinder, m framework.Mark, pod *corev1.Pod) error {
	bc := recovered(m)
	if act == actionCommit {
		return s.o.Runner.PostBind(ctx, p, bc)
	}
	return s.o.Runner.RollBack(ctx, p, bc, pod)
}

// recovered returns the context of a bind from its mark.
func recovered(m framework.Mark) *framework.BindContext {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: m.Pod.Namespace, Name: m.Pod.Name, UID: m.PodUID}}
	return &framework.BindContext{
		Pod:       pod,
		Node:      &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: m.Node}},
		Binding:   &corev1.Binding{ObjectMeta: pod.ObjectMeta, Target: corev1.ObjectReference{Kind: "Node", Name: m.Node}},
		Attempt:   m.Attempt,
		Recovered: true,
	}
}
