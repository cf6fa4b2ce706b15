// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package bindpolicy

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/prebind/prebind/policy"
	"github.com/prebind/prebind/policy/v1alpha1"
)

// listAgain is the time after which the policies are listed again without a change.
const listAgain = 5 * time.Second

// errPreparing is the reason why a policy cannot be evaluated before it is compiled.
var errPreparing = &policy.PendingError{Err: errors.New("it is being compiled")}

// controller keeps the set of the plugin up to date. Its methods are called by one goroutine.
type controller struct {
	p        *Plugin
	statuses *statuses
	// latest contains the newest generation of each policy by name.
	latest map[string]*generation
	// reports are the results of the goroutines that prepare generations, which work counts.
	reports chan report
	work    sync.WaitGroup
}

// generation is the newest generation of a policy.
type generation struct {
	*entry
	verdict verdict
	// cancel ends its preparation.
	cancel context.CancelFunc
}

// report is the progress of a generation.
type report struct {
	of      *generation
	entry   *entry
	verdict verdict
}

// Start implements framework.Starter.
func (p *Plugin) Start(ctx context.Context) error {
	c := &controller{p: p, statuses: newStatuses(p.h), latest: map[string]*generation{}, reports: make(chan report)}
	ctx, cancel := context.WithCancel(ctx)
	defer c.work.Wait()
	defer cancel()
	c.work.Go(func() { c.statuses.run(ctx) })
	c.work.Go(func() { p.trust(ctx) })
	c.run(ctx)
	return nil
}

// HasSynced implements framework.Starter. The plugin can decide when it knows all policies. One that is not prepared yet follows its failure policy.
func (p *Plugin) HasSynced() bool { return p.set.Load() != nil }

// signal receives once for one or more changes since the last receive.
type signal chan struct{}

// handler sends the signal for each event.
func (s signal) handler() toolscache.ResourceEventHandler {
	send := func() {
		select {
		case s <- struct{}{}:
		default:
		}
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { send() }, UpdateFunc: func(any, any) { send() }, DeleteFunc: func(any) { send() },
	}
}

func (c *controller) run(ctx context.Context) {
	for {
		c.list(ctx)
		timer := c.p.h.Clock.NewTimer(listAgain)
		select {
		case <-c.p.changed:
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

// list begins to prepare new generations, forgets those that are gone, and puts the others in force.
func (c *controller) list(ctx context.Context) {
	var list v1alpha1.BindPolicyList
	if err := c.p.h.Cached.List(ctx, &list); err != nil {
		klog.FromContext(ctx).Error(err, "Could not list the BindPolicies, will retry")
		return
	}
	exist := sets.New[string]()
	for i := range list.Items {
		b := &list.Items[i]
		exist.Insert(b.Name)
		g := c.latest[b.Name]
		if g != nil && g.isFor(b) {
			continue
		}
		if g != nil {
			g.cancel()
		}
		c.latest[b.Name] = c.begin(ctx, b)
	}
	for name, g := range c.latest {
		if !exist.Has(name) {
			g.cancel()
			delete(c.latest, name)
			c.p.metrics.forget(name)
		}
	}
	c.apply()
}

// begin prepares a generation in the background.
func (c *controller) begin(ctx context.Context, b *v1alpha1.BindPolicy) *generation {
	ctx, cancel := context.WithCancel(ctx)
	g := &generation{cancel: cancel, entry: c.p.entryOf(b, policy.Broken(b, errPreparing))}
	c.work.Go(func() {
		defer cancel()
		c.p.prepare(ctx, b, func(e *entry, v verdict) {
			select {
			case c.reports <- report{of: g, entry: e, verdict: v}:
			case <-ctx.Done():
			}
		})
	})
	return g
}

// take records the progress of a generation.
func (c *controller) take(r report) {
	g := r.of
	if c.latest[g.name] != g {
		return // A newer generation has replaced it.
	}
	before := g.verdict
	g.entry, g.verdict = r.entry, r.verdict
	switch {
	case g.verdict.message == before.message:
	case g.verdict.state() == stateInForce:
		klog.V(2).InfoS("Applying a BindPolicy", "policy", g.name, "generation", g.generation)
	default:
		klog.InfoS("A BindPolicy is not ready", "policy", g.name, "generation", g.generation, "reason", g.verdict.reason, "message", g.verdict.message)
	}
}

// apply puts the newest generations in force, ends the watches that they do not need, and wakes the binds that wait.
func (c *controller) apply() {
	all, used, counts := make(set, 0, len(c.latest)), sets.New[string](), map[state]int{}
	known := map[string]generation{}
	for name, g := range c.latest {
		all = append(all, g.entry)
		for _, s := range g.reads.all() {
			used.Insert(s.Name)
		}
		counts[g.verdict.state()]++
		if g.verdict.reason != "" {
			known[name] = *g
		}
	}
	slices.SortFunc(all, func(a, b *entry) int { return cmp.Compare(a.name, b.name) })
	if c.p.h.Selections != nil {
		c.p.h.Selections.Keep(used)
	}
	c.p.metrics.show(counts)
	c.statuses.publish(known)
	if before := c.p.set.Swap(&all); before == nil || !slices.Equal(*before, all) {
		c.p.h.Wake(nil)
	}
}
