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

	"github.com/prebind/prebind/binder/framework"
)

// SweepGrace is how long the sweep leaves the mark of a pending pod alone after the
// attempt's replica is gone. It exceeds framework.BindSettles, so that no bind that was
// allowed is still open, and the time that a client waits before it calls again.
const SweepGrace = time.Minute

const (
	// sweepEvery is the pause between two sweeps.
	sweepEvery = 10 * time.Second
	// sweepMarks is how many marks a sweep settles at most, and sweepTakes when it stops
	// before: the next one goes on. Each mark costs a read of its pod.
	sweepMarks = 200
	sweepTakes = 20 * time.Second
	// sweepErrors is how many errors of a sweep are logged.
	sweepErrors = 5
	// marksTake is what a plugin may take to list its marks.
	marksTake = 30 * time.Second
	// tidyEvery is the pause before plugins are asked to tidy again, and tidyTakes
	// what one may take.
	tidyEvery = 2 * time.Minute
	tidyTakes = time.Minute
)

// Replicas says which replicas live.
type Replicas interface {
	// Observe keeps watch over the replicas until the context ends. How long a sweep
	// takes must not matter for what it sees.
	Observe(ctx context.Context)
	// Living returns the replicas that Observe has seen lately. The caller owns the map.
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

// Verdicts returns those that the Observer is told of; the caller owns the slice.
func Verdicts() []string { return []string{string(verdictCommit), string(verdictRollBack)} }

// decide is the whole of recovery in one pure table: what becomes of a mark, by
// the live pod (nil when it is gone), whether somebody works on its attempt, and
// for how long nobody has been known to.
func decide(m framework.Mark, pod *corev1.Pod, workedOn bool, orphaned time.Duration) verdict {
	if workedOn {
		return verdictKeep
	}
	switch framework.WhereaboutsOf(pod, m.PodUID, m.Node) {
	case framework.BoundHere:
		// Whichever attempt bound it: what was written is in use.
		return verdictCommit
	case framework.Pending:
		if orphaned <= SweepGrace {
			// The bind can be in progress, or be requested again on another replica.
			return verdictKeep
		}
	case framework.Gone, framework.Replaced, framework.BoundElsewhere:
	}
	return verdictRollBack
}

// Sweeper brings the writes of attempts to an end that nobody works on any more.
type Sweeper struct {
	engine *Engine
	// replicas is nil when it sweeps for this replica only.
	replicas Replicas
	// mu is held by Run.
	mu sync.Mutex
	// tidied is when that was last.
	tidied time.Time
	// orphans are the marks that nobody has been known to work on.
	orphans map[sweptMark]*orphan
	// sweeps counts them.
	sweeps int
}

type sweptMark struct {
	plugin string
	mark   framework.Mark
}

// NewSweeper returns the sweeper for what other replicas left behind when they
// ended. One replica at a time should run it.
func NewSweeper(e *Engine, replicas Replicas) *Sweeper {
	return &Sweeper{engine: e, replicas: replicas, orphans: map[sweptMark]*orphan{}}
}

// NewOwnSweeper returns the sweeper for what attempts of this replica could not
// bring to an end themselves, as when the API server did not answer for long. Every
// replica runs one.
func NewOwnSweeper(e *Engine) *Sweeper { return NewSweeper(e, nil) }

// Run sweeps until the context ends. It may be called again then; it waits until
// an earlier call has returned.
func (s *Sweeper) Run(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.orphans)
	if s.replicas != nil {
		var observing sync.WaitGroup
		defer observing.Wait()
		observing.Go(func() { s.replicas.Observe(ctx) })
	}
	log := klog.FromContext(ctx)
	for {
		if err := s.sweep(ctx); err != nil {
			log.Error(err, "Could not look for what ended replicas left behind, will try again")
		}
		if err := s.tidy(ctx); err != nil {
			log.Error(err, "Could not give up what belongs to pods that are gone, will try again")
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

// sweep settles marks that nobody works on, as far as its limits allow. Those that are
// left have their turn in the next sweeps.
func (s *Sweeper) sweep(ctx context.Context) error {
	living := map[string]bool{}
	if s.replicas != nil {
		var err error
		if living, err = s.replicas.Living(ctx); err != nil {
			return fmt.Errorf("asking which replicas live: %w", err)
		}
	}
	s.sweeps++
	began := s.engine.o.Clock.Now()
	due, errs := s.due(ctx, living)
	failed := 0
	for _, m := range turns(due, sweepMarks) {
		if ctx.Err() != nil || s.engine.o.Clock.Since(began) > sweepTakes {
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

// due returns the marks that may have to be settled, and notes since when nobody has
// worked on each. Its cost is linear in the number of all marks, and it reads caches
// only.
func (s *Sweeper) due(ctx context.Context, living map[string]bool) (due []orphaned, errs []error) {
	orphans := map[sweptMark]*orphan{}
	for _, p := range s.engine.settings.Load().Plugins {
		recoverer, ok := p.(framework.Recoverer)
		if !ok {
			continue
		}
		marks, err := listMarks(ctx, recoverer)
		now := s.engine.o.Clock.Now()
		for _, m := range marks {
			key := sweptMark{plugin: p.Name(), mark: m}
			if orphans[key] != nil || s.workedOn(m, living) {
				continue
			}
			o := s.orphans[key]
			if o == nil {
				o = &orphan{since: now}
			}
			orphans[key] = o
			if now.Sub(o.since) > SweepGrace || !s.engine.attempts.stillPending(ctx, m.Pod, m.PodUID) {
				due = append(due, orphaned{plugin: p, mark: m, orphan: o})
			}
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("plugin %s: listing its marks: %w", p.Name(), err))
			// The list may lack marks that are there.
			for key, o := range s.orphans {
				if key.plugin == p.Name() && orphans[key] == nil && !s.workedOn(key.mark, living) {
					orphans[key] = o
				}
			}
		}
	}
	s.orphans = orphans
	return due, errs
}

// tidy asks the plugins to, when it is time.
func (s *Sweeper) tidy(ctx context.Context) error {
	if s.replicas == nil || s.engine.o.Clock.Since(s.tidied) < tidyEvery {
		return nil
	}
	s.tidied = s.engine.o.Clock.Now()
	var errs []error
	for _, p := range s.engine.settings.Load().Plugins {
		tidier, ok := p.(framework.Tidier)
		if !ok {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, tidyTakes)
		if err := contained(ctx, func() error { return tidier.Tidy(ctx) }); err != nil {
			errs = append(errs, fmt.Errorf("plugin %s: %w", p.Name(), err))
		}
		cancel()
	}
	return errors.Join(errs...)
}

func listMarks(ctx context.Context, r framework.Recoverer) (marks []framework.Mark, err error) {
	ctx, cancel := context.WithTimeout(ctx, marksTake)
	defer cancel()
	err = contained(ctx, func() (err error) {
		marks, err = r.Marks(ctx)
		return err
	})
	return marks, err
}

// workedOn says whether somebody works on the mark's attempt, or will be asked by
// another sweeper whether it does.
func (s *Sweeper) workedOn(m framework.Mark, living map[string]bool) bool {
	replica, own := replicaOf(m.Attempt), s.engine.o.Replica
	if s.replicas == nil {
		return replica != own || s.engine.attempts.working(m.Attempt)
	}
	return replica == own || living[replica]
}

// settle does what is decided on one mark.
func (s *Sweeper) settle(ctx context.Context, o orphaned) error {
	p, m := o.plugin, o.mark
	pod, err := s.engine.attempts.read(ctx, m.Pod)
	if err != nil {
		return fmt.Errorf("reading pod %s: %w", m.Pod, err)
	}
	v := decide(m, pod, false, s.engine.o.Clock.Since(o.orphan.since))
	if v == verdictKeep {
		return nil
	}
	klog.FromContext(ctx).Info("Settling what an attempt left behind",
		"plugin", p.Name(), "pod", m.Pod.String(), "node", m.Node, "attempt", m.Attempt, "verdict", v)
	err = s.carryOut(ctx, v, p, m, pod)
	s.engine.o.Recorder.Swept(p.Name(), string(v), err)
	return err
}

// carryOut commits the mark, or rolls it back.
func (s *Sweeper) carryOut(ctx context.Context, v verdict, p framework.PreBinder, m framework.Mark, pod *corev1.Pod) error {
	bc := recovered(m)
	if v == verdictRollBack {
		undoer, ok := p.(framework.RollBacker)
		if !ok {
			return nil
		}
		ctx, cancel := context.WithTimeout(ctx, rollBackTimeout)
		defer cancel()
		err := step(ctx, s.engine.o.Recorder, stepOf(StepPreBindRollBack, p.Name(), bc), func(ctx context.Context) error {
			return preBindRollBack(ctx, undoer, bc)
		})
		if pod != nil && pod.UID == m.PodUID {
			tellUndone(s.engine.o.Events, pod, m.Node, p.Name(), bc.Undone())
		}
		return err
	}
	post, ok := p.(framework.PostBinder)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, postBindTimeout)
	defer cancel()
	return step(ctx, s.engine.o.Recorder, stepOf(StepPostBind, p.Name(), bc), func(ctx context.Context) error {
		post.PostBind(ctx, bc)
		return nil
	})
}

// recovered is the context of a bind of which only the mark is left.
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
