// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package work

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/podstate"
)

// Grace is how long a sweep keeps the mark of a pending pod after the attempt's replica is gone. It
// is longer than framework.BindSettles, so that no allowed bind is still open, and longer than
// most gaps between two calls.
const Grace = time.Minute

const (
	// sweepEvery is the pause between two sweeps.
	sweepEvery = 10 * time.Second
	// sweepMarks limits the marks of a plugin that one sweep settles, because each costs a read of its pod.
	// sweepTakes limits the time for them: a plugin whose writes take long must not delay others. The next sweep continues.
	sweepMarks = 200
	sweepTakes = 20 * time.Second
	// sweepErrors is how many errors of a plugin a sweep logs.
	sweepErrors = 5
	// tidyEvery is the pause between two calls of Tidy.
	tidyEvery = 2 * time.Minute
)

// Actions of a sweep: on a mark, on the marks of a plugin, and on what a plugin no longer needs.
const (
	actionCommit   = "commit"
	actionRollBack = "roll back"
	actionList     = "list"
	actionTidy     = "tidy"
)

// Actions returns what a sweep does; the caller owns the slice. Of the last two, only failures are recorded.
func Actions() []string { return []string{actionCommit, actionRollBack, actionList, actionTidy} }

// Peers are the replicas of this Prebind.
type Peers interface {
	// Leads returns whether this replica leads.
	Leads() bool
	// Living returns the live replicas by recent observations, or nil without any. It is not changed.
	Living() map[string]bool
}

// orphan is the record of a mark whose attempt is not in progress.
type orphan struct {
	plugin framework.PreBinder
	mark   framework.Mark
	// since is when the sweeper first found that out, by its own clock.
	since time.Time
	// tried is when a sweep last tried to settle it, or zero.
	tried time.Time
}

// sweeper commits or rolls back the writes of attempts that ended without doing so.
type sweeper struct {
	*Set
	plugins []framework.Plugin
	peers   Peers
	// tidied is the time of the last Tidy.
	tidied  time.Time
	orphans map[orphanKey]*orphan
}

type orphanKey struct {
	plugin string
	mark   framework.Mark
}

// Sweep settles, until the context ends, the marks of plugins whose attempts are not in progress: those of this replica that
// could not be rolled back, for example because the API server did not respond, and while this replica leads, those of replicas that are gone. The
// leader also calls Tidy.
func (s *Set) Sweep(ctx context.Context, plugins []framework.Plugin, peers Peers) {
	(&sweeper{Set: s, plugins: plugins, peers: peers, orphans: map[orphanKey]*orphan{}}).run(ctx)
}

func (s *sweeper) run(ctx context.Context) {
	for ctx.Err() == nil {
		if err := s.sweep(ctx); err != nil {
			klog.FromContext(ctx).Error(err, "Sweep failed, will retry")
		}
		if err := s.tidy(ctx); err != nil {
			klog.FromContext(ctx).Error(err, "Tidy failed, will retry")
		}
		timer := s.o.Clock.NewTimer(sweepEvery)
		select {
		case <-ctx.Done():
		case <-timer.C():
		}
		timer.Stop()
	}
}

// sweep settles orphans within its limits. The next sweeps settle the rest.
func (s *sweeper) sweep(ctx context.Context) error {
	var errs []error
	var living map[string]bool
	if s.peers.Leads() {
		living = s.peers.Living()
	}
	before := s.orphans
	s.orphans = map[orphanKey]*orphan{}
	for _, plugin := range s.plugins {
		if p, ok := plugin.(framework.PreBinder); ok {
			due, err := s.due(ctx, p, living, before)
			errs = append(errs, err, s.settleAll(ctx, due))
		}
	}
	return errors.Join(errs...)
}

// settleAll settles orphans of one plugin within the limits.
func (s *sweeper) settleAll(ctx context.Context, due []*orphan) error {
	var errs []error
	began := s.o.Clock.Now()
	for _, o := range turns(due, sweepMarks) {
		if ctx.Err() != nil || s.o.Clock.Since(began) > sweepTakes {
			break
		}
		o.tried = s.o.Clock.Now()
		if err := s.settle(ctx, o); err != nil {
			errs = append(errs, fmt.Errorf("plugin %s: %w", o.plugin.Name(), err))
		}
	}
	if more := len(errs) - sweepErrors; more > 0 {
		errs = append(errs[:sweepErrors], fmt.Errorf("and %d more", more))
	}
	return errors.Join(errs...)
}

// due returns the orphans of the plugin to settle. living is nil if this replica settles only its own. The cost is linear in the number
// of all marks, or of the objects that can have them, and due reads caches only.
func (s *sweeper) due(ctx context.Context, p framework.PreBinder, living map[string]bool, before map[orphanKey]*orphan) (due []*orphan, err error) {
	marks, err := s.marks(ctx, p)
	if err != nil {
		s.o.Recorder.Swept(p.Name(), actionList, err)
		err = fmt.Errorf("plugin %s: listing its marks: %w", p.Name(), err) // The next list has the others.
	}
	working, now := s.working(), s.o.Clock.Now()
	for _, m := range marks {
		key, replica := orphanKey{plugin: p.Name(), mark: m}, ReplicaOf(m.Attempt)
		inProgress := living == nil || living[replica]
		if replica == s.o.Replica {
			inProgress = working[m.Attempt]
		}
		if inProgress || s.orphans[key] != nil {
			continue
		}
		o := before[key]
		if o == nil {
			o = &orphan{plugin: p, mark: m, since: now}
			if replica == s.o.Replica {
				o.since = time.Time{} // Its rollback has begun.
			}
		}
		s.orphans[key] = o
		if now.Sub(o.since) > Grace || !s.stillPending(ctx, m.Pod, m.PodUID) {
			due = append(due, o)
		}
	}
	return due, err
}

// marks returns the marks of the plugin. With an error, the list may be incomplete.
func (*sweeper) marks(ctx context.Context, p framework.PreBinder) (marks []framework.Mark, err error) {
	ctx, cancel := context.WithTimeout(ctx, outcomeTimeout)
	defer cancel()
	err = Contain(ctx, func() (err error) {
		marks, err = p.Marks(ctx)
		return err
	})
	return marks, err
}

// turns returns the orphans that the next sweep settles, in order, up to the given number.
// Namespaces take turns. In each, the mark whose last try is the oldest is first. Thus a tenant
// with many marks, or a mark that fails, does not delay others.
func turns(orphans []*orphan, most int) []*orphan {
	slices.SortStableFunc(orphans, func(a, b *orphan) int {
		return cmp.Or(a.tried.Compare(b.tried), a.since.Compare(b.since))
	})
	orphans = Interleave(orphans, func(o *orphan) string { return o.mark.Pod.Namespace })
	return orphans[:min(len(orphans), most)]
}

// Interleave returns the items in an order in which their groups take turns: the first item of
// each group, then the second of each, and so on. Otherwise, items keep their order. The caller owns the result. The cost is linear.
func Interleave[T any](items []T, group func(T) string) []T {
	var rounds [][]T
	had := map[string]int{}
	for _, item := range items {
		name := group(item)
		round := had[name]
		had[name]++
		if round == len(rounds) {
			rounds = append(rounds, nil)
		}
		rounds[round] = append(rounds[round], item)
	}
	return slices.Concat(rounds...)
}

// tidy calls Tidy of the plugins, when it is time and this replica leads.
func (s *sweeper) tidy(ctx context.Context) error {
	if !s.peers.Leads() || s.o.Clock.Since(s.tidied) < tidyEvery {
		return nil
	}
	s.tidied = s.o.Clock.Now()
	var errs []error
	for _, p := range s.plugins {
		tidier, ok := p.(framework.Tidier)
		if !ok {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, tidyTimeout)
		if err := Contain(ctx, func() error { return tidier.Tidy(ctx) }); err != nil {
			s.o.Recorder.Swept(p.Name(), actionTidy, err)
			errs = append(errs, fmt.Errorf("plugin %s: %w", p.Name(), err))
		}
		cancel()
	}
	return errors.Join(errs...)
}

// settle decides on one mark by the live pod, and carries it out.
func (s *sweeper) settle(ctx context.Context, o *orphan) error {
	m, now := o.mark, s.o.Clock.Now() // Before the read: its answer can be late.
	pod, err := s.LivePod(ctx, m.Pod, ReadOutcome)
	if err != nil {
		s.o.Recorder.Swept(o.plugin.Name(), actionList, err)
		return fmt.Errorf("reading pod %s: %w", m.Pod, err)
	}
	action := actionRollBack
	switch at := podstate.Of(pod, m.PodUID, m.Node); {
	case at == podstate.BoundHere:
		action = actionCommit // The pod uses the writes, whichever attempt bound it.
	case at == podstate.Pending && now.Sub(o.since) <= Grace:
		return nil // The bind may be in progress, or another replica may receive the next call.
	}
	klog.FromContext(ctx).Info("Settling the writes of an ended attempt",
		"plugin", o.plugin.Name(), "pod", m.Pod.String(), "node", m.Node, "attempt", m.Attempt, "action", action)
	if action == actionCommit {
		err = s.postBind(ctx, o.plugin, m, pod)
	} else {
		err = s.rollBack(ctx, o.plugin, m, pod)
	}
	s.o.Recorder.Swept(o.plugin.Name(), action, err)
	if err == nil {
		delete(s.orphans, orphanKey{plugin: o.plugin.Name(), mark: m})
	}
	return err
}
