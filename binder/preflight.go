// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"slices"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/runner"
)

// preFlight runs the PreFlight of every plugin, in order, and returns those whose PreBind
// has to run. The first rejection ends it.
func (c *call) preFlight(ctx context.Context, bc *framework.BindContext) ([]framework.PreBinder, *framework.Error) {
	var run []framework.PreBinder
	var takers []framework.PreBinder
	works := false
	for _, p := range c.plugins {
		next, err := c.check(ctx, p, bc)
		if err != nil {
			return nil, err
		}
		works = works || next == framework.Run
		if next == framework.Take {
			takers = append(takers, p)
		}
		if next == framework.Run || next == framework.Accompany || next == framework.Take {
			run = append(run, p)
		}
	}
	notTaken := func(p framework.PreBinder) bool { return !c.runner.Take(ctx, p, bc) }
	if works || slices.ContainsFunc(takers, notTaken) {
		return run, nil
	}
	return nil, nil
}

// check runs the PreFlight of one plugin with the cached reader. If the plugin rejects the bind
// or asks to verify, check reads the pod and the node live, once for the call, and repeats
// Setup and PreFlight with the live reader. That result decides.
func (c *call) check(ctx context.Context, p framework.PreBinder, bc *framework.BindContext) (framework.Next, *framework.Error) {
	before := bc.Checkpoint()
	next, err := c.runner.PreFlight(ctx, p, false, bc)
	if err == nil && next != framework.Verify {
		return next, nil
	}
	if ctx.Err() != nil {
		// There is no time for the live reads, and the cache alone must neither reject the bind nor skip the plugin.
		return framework.Run, unfinished(c.Request, context.Cause(ctx))
	}
	bc.Restore(before)
	if err := c.refresh(ctx, bc); err != nil {
		return framework.Run, err
	}
	bc.Live = true
	defer func() { bc.Live = false }()
	next, err = c.runner.PreFlight(ctx, p, true, bc)
	if next == framework.Verify {
		next = framework.Run
	}
	return next, err
}

// refresh reads the pod and the node from the API server into the call and its context. If one
// of them has changed, it runs the mutators again.
func (c *call) refresh(ctx context.Context, bc *framework.BindContext) *framework.Error {
	if c.refreshed == bc {
		return nil
	}
	pod, err := c.livePod(ctx, c.Pod, runner.ReadDoubted)
	if err != nil {
		return err
	}
	if at := framework.WhereaboutsOf(pod, c.pod.UID, c.key.Node); at != framework.Pending {
		return framework.AsError(framework.Binder, framework.Stale(podObject(c.Pod), "%s", at).Advise("discard the Binding"))
	}
	if err := guardVersion(pod, c.Binding); err != nil {
		return err
	}
	node, err := c.liveNode(ctx, c.key.Node, runner.ReadDoubted)
	if err != nil {
		return err
	}
	if node.UID != c.node.UID {
		// The scheduler may have chosen the new node, and all plugins must read it.
		return framework.AsError(framework.Binder, framework.Wait(framework.Object{Kind: "Node", Name: node.Name},
			"recreated under the same name, waiting for the new node in the cache").Advise("retry the Binding"))
	}
	changed := pod.ResourceVersion != c.pod.ResourceVersion || node.ResourceVersion != c.node.ResourceVersion
	c.pod, c.node = pod, node
	bc.Pod, bc.Node, c.refreshed = pod, node, bc
	if !changed {
		return nil
	}
	return c.mutate(ctx)
}
