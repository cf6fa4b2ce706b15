// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/notify"
	"github.com/prebind/prebind/internal/work"
)

// ErrPodNotFound is the cause of the denial of a Binding whose pod does not exist. If Prebind let it through, a pod that is created
// a moment later would be bound unchecked.
var ErrPodNotFound = errors.New("the pod does not exist")

// readPod reads the pod of the Binding. The cache may be behind, so only the pod of the API server ends a bind. The step is allow if the
// pod can be bound, and if it is the pod of the first pass.
func (c *call) readPod(ctx context.Context) step {
	b, reason := c.Binding, work.ReadMissing
	// The API server rejects the Binding, or the pod is another one than that of the first pass.
	over := func(pod *corev1.Pod) bool {
		return unbindable(pod, b) || b.ResourceVersion != "" && b.ResourceVersion != pod.ResourceVersion || c.pod != nil && pod.UID != c.key.Pod
	}
	pod := &corev1.Pod{}
	if err := c.o.Cached.Get(ctx, c.Request.Pod, pod); err == nil {
		if !over(pod) {
			c.pod = pod
			return step{do: allow}
		}
		reason = work.ReadDoubted
	}
	if c.uses(c.podRead) {
		return step{do: allow}
	}
	pod, err := c.work.LivePod(ctx, c.Request.Pod, reason)
	switch {
	case err != nil:
		return ends(unreadable(podObject(c.Request.Pod), err))
	case pod == nil:
		return ends(framework.Stale(podObject(c.Request.Pod), "not found").Because(ErrPodNotFound).Advise("discard the Binding"))
	case !over(pod):
		c.pod, c.podRead = pod, c.o.Clock.Now()
		return step{do: allow}
	case !unbindable(pod, b) && b.ResourceVersion != "" && b.ResourceVersion != pod.ResourceVersion:
		// The API server checks it as well, but only after the plugins would have had their side effects.
		return ends(framework.Stale(podObject(c.Request.Pod), "has resourceVersion %s, but the Binding requires %s",
			pod.ResourceVersion, short(b.ResourceVersion)).Advise("schedule the changed pod"))
	}
	d := rejectedBy(pod, b)
	if d.UID != "" && c.pod != nil {
		d.UID = c.key.Pod // The API server must reject it: it was not checked.
	}
	return step{do: finish, answer: d}
}

// uses returns whether the pass uses an object again that was read from the API server at that time, which it does for Settle. Then its
// next pass is due when the object has to be read again. A call that waits makes a pass for every change, and the cache never has an
// object that is too large.
func (c *call) uses(read time.Time) bool {
	again := read.Add(Settle)
	if !c.o.Clock.Now().Before(again) {
		return false
	}
	if c.rereads.IsZero() || again.Before(c.rereads) {
		c.rereads = again
	}
	return true
}

// readNode returns the target. The cache may be behind, so only the API server's answer rejects a node.
func (c *call) readNode(ctx context.Context) (*corev1.Node, *framework.Error) {
	node, key := &corev1.Node{}, types.NamespacedName{Name: c.key.Node}
	if err := c.o.Cached.Get(ctx, key, node); err == nil {
		return node, nil
	}
	if c.uses(c.nodeRead) {
		return c.node, nil
	}
	object := framework.Object{Kind: "Node", Name: key.Name}
	c.o.Recorder.ReadLive("Node", work.ReadMissing)
	if err := c.o.Live.Get(ctx, key, node); apierrors.IsNotFound(err) {
		return nil, framework.Refuse(object, "not found").Advise("choose another node")
	} else if err != nil {
		return nil, unreadable(object, err)
	}
	// The cache does not have them either.
	node.ManagedFields, node.Status.Images = nil, nil
	c.nodeRead = c.o.Clock.Now()
	return node, nil
}

func unreadable(object framework.Object, err error) *framework.Error {
	return framework.FromAPI(object, "reading it from the API server", err).
		Advise("check that the API server responds and that Prebind has permission to read the object")
}

// subscribing adds all that is read to a subscription, before it reads, so that no change is missed.
type subscribing struct {
	framework.Reader
	to *notify.Subscription
}

// Get implements client.Reader.
func (s subscribing) Get(ctx context.Context, key client.ObjectKey, into client.Object, opts ...client.GetOption) error {
	s.to.Add(notify.RefTo(into, key.Namespace, key.Name))
	return s.Reader.Get(ctx, key, into, opts...)
}

// List implements client.Reader.
func (s subscribing) List(ctx context.Context, into client.ObjectList, opts ...client.ListOption) error {
	if selected, ok := framework.SelectedBy(opts); ok {
		s.to.Add(notify.Selected(selected.Selection, selected.Value))
		return s.Reader.List(ctx, into, opts...)
	}
	options := client.ListOptions{}
	options.ApplyOptions(opts)
	s.to.Add(notify.RefTo(into, options.Namespace, ""))
	return s.Reader.List(ctx, into, opts...)
}
