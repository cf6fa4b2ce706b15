// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
)

// preFlight runs the PreFlight of every plugin, in order, and returns those whose PreBind
// has to run. The first rejection ends it.
func (e *Engine) preFlight(ctx context.Context, c *call, bc *framework.BindContext) ([]framework.PreBinder, *framework.Error) {
	var run []framework.PreBinder
	for _, p := range c.plugins {
		next, err := e.check(ctx, c, p, bc)
		if err != nil {
			return nil, err
		}
		if next == framework.Run {
			run = append(run, p)
		}
	}
	return run, nil
}

// check runs the PreFlight of one plugin by the cache. When it rejects, or asks to
// verify, the API server has the last word: check reads pod and node live, once for the
// call, and repeats Setup and PreFlight with the live reader, once for the plugin.
func (e *Engine) check(ctx context.Context, c *call, p framework.PreBinder, bc *framework.BindContext) (framework.Next, *framework.Error) {
	before := bc.Checkpoint()
	next, err := e.ask(ctx, p, e.o.Cached, bc)
	if err == nil && next != framework.Verify || ctx.Err() != nil {
		return next, err
	}
	bc.Restore(before)
	if err := e.refresh(ctx, c, bc); err != nil {
		return framework.Run, err
	}
	bc.Live = true
	defer func() { bc.Live = false }()
	next, err = e.ask(ctx, p, e.o.liveFor(p.Name()), bc)
	if next == framework.Verify {
		next = framework.Run
	}
	return next, err
}

// ask runs Setup and PreFlight of one plugin once.
func (e *Engine) ask(ctx context.Context, p framework.PreBinder, reader framework.Reader, bc *framework.BindContext) (framework.Next, *framework.Error) {
	extender, extends := p.(framework.BindContextExtender)
	checker, checks := p.(framework.PreFlighter)
	if !extends && !checks {
		return framework.Run, nil
	}
	next := framework.Run
	err := step(ctx, e.o.Recorder, stepOf(StepPreFlight, p.Name(), bc), func(ctx context.Context) (err error) {
		if extends {
			err = extender.SetupBindContextExtension(ctx, reader, bc)
		}
		if checks && err == nil {
			next, err = checker.PreFlight(bc)
		}
		return err
	})
	return next, framework.AsError(p.Name(), err)
}

// refresh reads the pod and the node from the API server, for this call and its context,
// and repeats the preview if one of them has changed.
func (e *Engine) refresh(ctx context.Context, c *call, bc *framework.BindContext) *framework.Error {
	if c.refreshed == bc {
		return nil
	}
	about := framework.Object{Kind: "Pod", Namespace: c.Pod.Namespace, Name: c.Pod.Name}
	pod := &corev1.Pod{}
	e.o.Recorder.ReadLive("", "Pod", ReadDoubted)
	err := e.o.Live.Get(ctx, c.Pod, pod)
	switch {
	case apierrors.IsNotFound(err):
		pod = nil
	case err != nil:
		return e.unreadable(about, err)
	}
	if at := framework.WhereaboutsOf(pod, c.pod.UID, c.key.node); at != framework.Pending {
		return framework.AsError(guardName, framework.Stale(about, "the pod is %s", at).Advise("forget this bind"))
	}
	if err := guardPod(pod, c.Binding); err != nil {
		return err
	}
	node, refused := e.liveNode(ctx, c.key.node, ReadDoubted)
	if refused != nil {
		return refused
	}
	if node.UID != c.node.UID {
		// The scheduler can mean the new node, and all plugins have to see it.
		return framework.AsError(guardName, framework.Wait(framework.Object{Kind: "Node", Name: node.Name},
			"the node was deleted and created anew under its name, and Prebind has not heard of the new one yet").Advise("repeat the Binding"))
	}
	changed := pod.ResourceVersion != c.pod.ResourceVersion || node.ResourceVersion != c.node.ResourceVersion
	c.pod, c.node = pod, node
	bc.Pod, bc.Node, c.refreshed = pod, node, bc
	if !changed {
		return nil
	}
	return e.preview(ctx, c)
}

// liveNode returns the node as the API server has it.
func (e *Engine) liveNode(ctx context.Context, name, reason string) (*corev1.Node, *framework.Error) {
	object := framework.Object{Kind: "Node", Name: name}
	node := &corev1.Node{}
	e.o.Recorder.ReadLive("", "Node", reason)
	if err := e.o.Live.Get(ctx, types.NamespacedName{Name: name}, node); apierrors.IsNotFound(err) {
		return nil, framework.AsError(guardName, framework.Refuse(object, "there is no such node").Advise("choose another"))
	} else if err != nil {
		return nil, e.unreadable(object, err)
	}
	// As in the cache.
	node.ManagedFields, node.Status.Images = nil, nil
	return node, nil
}

// liveFor returns the live reader of a plugin, whose reads the tracker sees.
func (o *Options) liveFor(plugin string) framework.Reader {
	return trackedReader{Reader: o.Live, tracker: o.Recorder, plugin: plugin}
}

// trackedReader reports the reads of a plugin.
type trackedReader struct {
	framework.Reader
	tracker Tracker
	plugin  string
}

// Get implements client.Reader.
func (r trackedReader) Get(ctx context.Context, key client.ObjectKey, into client.Object, opts ...client.GetOption) error {
	r.tracker.ReadLive(r.plugin, framework.KindOf(into), ReadDoubted)
	return r.Reader.Get(ctx, key, into, opts...)
}

// List implements client.Reader.
func (r trackedReader) List(ctx context.Context, into client.ObjectList, opts ...client.ListOption) error {
	r.tracker.ReadLive(r.plugin, framework.KindOf(into), ReadDoubted)
	return r.Reader.List(ctx, into, opts...)
}
