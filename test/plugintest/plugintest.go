// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package plugintest tests PreBind plugins without a cluster. It calls their methods the way
// the engine does.
package plugintest

import (
	"context"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/fakeapi"
	"github.com/prebind/prebind/test/gen"
)

// Cluster is an API server in memory, with a cache that is always up to date. Put, Change,
// and Remove change its objects, and wake waits.
type Cluster struct {
	*fakeapi.Server
	// Handle is what Registration.New gets.
	Handle framework.Handle
}

// New returns a cluster with the objects.
func New(objects ...client.Object) *Cluster {
	c := &Cluster{Server: fakeapi.New(objects...)}
	connection, changes := c.Connect(), framework.NewHub()
	c.OnChange(func(o client.Object, _ bool) { changes.Changed(framework.RefTo(o, o.GetNamespace(), o.GetName())) })
	c.Handle = framework.Handle{
		Cached: c.Cache(), Live: connection, Writer: connection, Status: connection,
		Changes: changes, Clock: clock.RealClock{}, Namespace: "prebind-system",
	}
	return c
}

// Bind returns the context of a bind of the pod to the node.
func Bind(pod *corev1.Pod, node *corev1.Node, options ...gen.BindingOption) *framework.BindContext {
	now := clock.RealClock{}.Now()
	return &framework.BindContext{Pod: pod, Node: node, Binding: gen.Binding(pod, node.Name, options...), Attempt: "test-1", Now: now, Since: now}
}

// PreFlight calls SetupBindContextExtension and PreFlight, first with the cached reader and
// then, if the plugin rejects the bind or asks for it, with the live reader.
func PreFlight(ctx context.Context, h framework.Handle, p framework.PreFlighter, bc *framework.BindContext) (framework.Next, error) {
	decide := func(reader framework.Reader) (framework.Next, error) {
		if extender, ok := p.(framework.BindContextExtender); ok {
			if err := extender.SetupBindContextExtension(ctx, reader, bc); err != nil {
				return framework.Run, err
			}
		}
		return p.PreFlight(bc)
	}
	before := bc.Checkpoint()
	next, err := decide(h.Cached)
	if err == nil && next != framework.Verify {
		return next, nil
	}
	bc.Restore(before)
	if node, err := framework.Get(ctx, h.Live, &corev1.Node{}, "", bc.Node.Name); node != nil && err == nil {
		bc.Node = node
	}
	bc.Live = true
	defer func() { bc.Live = false }()
	return decide(h.Live)
}

// Running is a PreBind that runs in a bubble of testing/synctest.
type Running struct{ result chan error }

// Start runs f, such as a PreBind, and returns when f waits or has ended.
func Start(f func() error) *Running {
	r := &Running{result: make(chan error, 1)}
	go func() { r.result <- f() }()
	synctest.Wait()
	return r
}

// Ended returns whether f has ended, and its error, after f has handled all changes. Call it
// no more once it has returned true.
func (r *Running) Ended() (bool, error) {
	synctest.Wait()
	select {
	case err := <-r.result:
		return true, err
	default:
		return false, nil
	}
}
