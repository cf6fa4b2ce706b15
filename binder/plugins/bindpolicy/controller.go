// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package bindpolicy

import (
	"context"
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/policy"
	"github.com/prebind/prebind/policy/v1alpha1"
)

// resyncInterval is the maximum time between two passes.
const resyncInterval = time.Minute

// controller keeps the set of the plugin up to date. Its methods are called by one goroutine.
type controller struct {
	p        *Plugin
	statuses *statuses
	// latest contains the newest generation of each policy, and last the policies in force, both by name.
	latest map[string]*generation
	last   map[string]*entry
	// kept contains the names of the selections that are kept. verdicts are those of the last pass.
	kept     sets.Set[string]
	verdicts map[string]verdict
	// first contains the policies of the first pass that HasSynced waits for, by name. It is nil before that.
	first   map[string]v1alpha1.BindPolicy
	reports chan report
	work    sync.WaitGroup
}

// generation is a generation of a policy that was prepared, or is being prepared.
type generation struct {
	prepared
	// cancel ends the preparation.
	cancel context.CancelFunc
	// retry is the time of the next preparation. Zero means never. pause is the time between the last two.
	retry time.Time
	pause time.Duration
}

// report is the progress of a generation.
type report struct {
	of     *generation
	result prepared
}

// Start implements framework.Starter.
func (p *Plugin) Start(ctx context.Context) error {
	c := &controller{p: p, statuses: newStatuses(p.h), latest: map[string]*generation{}, last: map[string]*entry{}, reports: make(chan report)}
	ctx, cancel := context.WithCancel(ctx)
	defer c.work.Wait()
	defer cancel()
	c.work.Go(func() { c.statuses.run(ctx) })
	c.run(ctx)
	return nil
}

// HasSynced implements framework.Starter. The plugin can decide when each policy of the first pass is in
// force, or has a reason why it is not. The watches of a policy have a timeout, so that it
// cannot delay the start for long.
func (p *Plugin) HasSynced() bool { return p.synced.Load() }

func (c *controller) run(ctx context.Context) {
	changed := c.p.h.Changes.Subscribe(framework.AllOf(&v1alpha1.BindPolicy{}, ""))
	defer changed.Close()
	for {
		timer := c.p.h.Clock.NewTimer(c.pass(ctx))
		select {
		case <-changed.C():
		case <-timer.C():
		case r := <-c.reports:
			c.take(r)
		case <-ctx.Done():
			timer.Stop()
			return
		}
		timer.Stop()
	}
}

// take records the progress of a generation, and the time of the next try. A generation with watches is prepared again
// every recheckInterval, so that a permission or a kind that is gone is noticed.
func (c *controller) take(r report) {
	g := r.of
	if g.entry != nil && r.result.entry != nil {
		r.result.entry = g.entry // It may share watches since then.
	}
	g.prepared, g.retry = r.result, time.Time{}
	switch now := c.p.h.Clock.Now(); {
	case !g.done:
	case g.problem != nil && g.problem.passing:
		g.pause = min(max(2*g.pause, retryInterval), maxRetryInterval)
		g.retry = now.Add(g.pause)
	case g.problem == nil && len(g.entry.reads.all(g.entry.compiled.Needs())) > 0:
		g.pause = 0
		g.retry = now.Add(recheckInterval)
	}
}

// pass begins to prepare new generations, and puts the usable ones in force. It returns the time until the next pass if
// nothing happens until then.
func (c *controller) pass(ctx context.Context) time.Duration {
	var list v1alpha1.BindPolicyList
	if err := c.p.h.Cached.List(ctx, &list); err != nil {
		if ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Could not list the BindPolicies")
		}
		return retryInterval
	}
	next := c.prepare(ctx, list.Items)
	latest := make(map[string]*prepared, len(c.latest))
	for name, g := range c.latest {
		latest[name] = &g.prepared
	}
	inForce, verdicts := decide(list.Items, latest, c.last)
	c.apply(inForce)
	c.keep()
	c.note(verdicts)
	c.sync(list.Items)
	return next
}

// prepare forgets the generations that are gone, and begins to prepare those that are new or due for another try. It
// returns the time until the next one is due.
func (c *controller) prepare(ctx context.Context, policies []v1alpha1.BindPolicy) time.Duration {
	now, next, exist, gone := c.p.h.Clock.Now(), resyncInterval, sets.New[string](), false
	for i := range policies {
		b := &policies[i]
		exist.Insert(b.Name)
		g := c.latest[b.Name]
		switch {
		case g == nil || !g.isFor(b):
			if g != nil {
				g.cancel()
			}
			c.begin(ctx, b, prepared{})
		case g.retry.IsZero():
		case g.retry.After(now):
			next = min(next, g.retry.Sub(now))
		default:
			c.retry(ctx, b, g)
		}
	}
	for name, g := range c.latest {
		if !exist.Has(name) {
			g.cancel()
			delete(c.latest, name)
			c.p.metrics.forget(name)
			gone = true
		}
	}
	if gone {
		c.share()
	}
	return next
}

// share forgets the fields that only deleted policies used, so that later watches do not hold them.
func (c *controller) share() {
	var needs []policy.Needs
	for _, g := range c.latest {
		if g.entry != nil {
			needs = append(needs, g.entry.compiled.Needs())
		}
	}
	for name, e := range c.last {
		if c.latest[name] != nil {
			needs = append(needs, e.compiled.Needs())
		}
	}
	c.p.sharing.restart(needs)
}

// begin prepares a generation in the background. before is the result of an earlier try, if any.
func (c *controller) begin(ctx context.Context, b *v1alpha1.BindPolicy, before prepared) *generation {
	ctx, cancel := context.WithCancel(ctx)
	g := &generation{prepared: prepared{uid: b.UID, generation: b.Generation, entry: before.entry}, cancel: cancel}
	c.latest[b.Name] = g
	c.work.Go(func() {
		defer cancel()
		c.p.prepare(ctx, b, before, func(result prepared) {
			select {
			case c.reports <- report{of: g, result: result}:
			case <-ctx.Done():
			}
		})
	})
	return g
}

// retry prepares a generation again. The last result stays known until the new one.
func (c *controller) retry(ctx context.Context, b *v1alpha1.BindPolicy, failed *generation) {
	failed.cancel()
	g := c.begin(ctx, b, failed.prepared)
	g.prepared, g.pause = failed.prepared, failed.pause
}

// apply puts the policies in force, and wakes the binds that wait.
func (c *controller) apply(inForce map[string]*entry) {
	inForce = share(inForce)
	for name, e := range inForce {
		if g := c.latest[name]; e.unwatched == "" && g != nil && g.entry != nil && g.entry.generation == e.generation && g.entry.uid == e.uid {
			g.entry = e
		}
	}
	if maps.Equal(inForce, c.last) {
		return
	}
	c.last = inForce
	now := ordered(inForce)
	c.p.set.Store(&now)
	c.p.h.Changes.Changed(framework.AllBinds())
}

// keep ends the watches that neither a policy in force nor a generation that is being prepared needs.
func (c *controller) keep() {
	if c.p.h.Selections == nil {
		return
	}
	used := sets.New[string]()
	insert := func(e *entry) {
		for _, s := range e.reads.all(e.compiled.Needs()) {
			used.Insert(s.Name)
		}
	}
	for _, e := range c.last {
		insert(e)
	}
	for _, g := range c.latest {
		if g.entry != nil {
			insert(g.entry)
		}
	}
	if !used.Equal(c.kept) {
		c.kept = used
		c.p.h.Selections.Keep(used)
	}
}

// note publishes the verdicts: in metrics, in the log, and for the status.
func (c *controller) note(verdicts map[string]verdict) {
	counts := map[state]int{}
	for name, v := range verdicts {
		counts[v.state]++
		before := c.verdicts[name]
		switch {
		case !v.known || v.message == before.message && v.generation == before.generation:
		case v.reason == v1alpha1.ReasonInForce:
			klog.V(2).InfoS("Applying a BindPolicy", "policy", name, "generation", v.generation)
		default:
			klog.InfoS("The latest generation of a BindPolicy is not ready", "policy", name, "generation", v.generation, "reason", v.reason, "message", v.message)
		}
	}
	c.verdicts = verdicts
	c.p.metrics.show(counts)
	c.statuses.publish(verdicts)
}

// sync sets synced when the policies of the first pass are known, have changed, or are gone.
func (c *controller) sync(policies []v1alpha1.BindPolicy) {
	if c.p.synced.Load() {
		return
	}
	pending := map[string]v1alpha1.BindPolicy{}
	for _, b := range policies {
		was, ok := c.first[b.Name]
		if !c.verdicts[b.Name].known && (c.first == nil || ok && was.UID == b.UID && was.Generation == b.Generation) {
			pending[b.Name] = b
		}
	}
	c.first = pending
	c.p.synced.Store(len(pending) == 0)
}
