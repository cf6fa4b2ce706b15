// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/notify"
	"github.com/prebind/prebind/binder/runner"
)

// reader reads the pod and the node of a bind. The cache may be behind, so only what the API
// server returns ends a bind.
type reader struct {
	cached, live framework.Reader
	recorder     Recorder
}

// ErrPodNotFound is the cause of the denial of a Binding whose pod does not exist. If Prebind let it through, a pod that is created
// a moment later would be bound unchecked.
var ErrPodNotFound = errors.New("the pod does not exist")

// pod returns the pod of the Binding. The pod comes with the error that is about it.
func (r *reader) pod(ctx context.Context, request Request) (*corev1.Pod, *framework.Error) {
	pod, reason := &corev1.Pod{}, runner.ReadMissing
	if err := r.cached.Get(ctx, request.Pod, pod); err == nil {
		if !unbindable(pod, request.Binding) && guardVersion(pod, request.Binding) == nil {
			return pod, nil
		}
		reason = runner.ReadDoubted
	}
	pod, err := r.livePod(ctx, request.Pod, reason)
	switch {
	case err != nil:
		return nil, err
	case pod == nil:
		return nil, framework.AsError(framework.Binder, framework.Stale(podObject(request.Pod), "not found").Because(ErrPodNotFound).Advise("discard the Binding"))
	case unbindable(pod, request.Binding):
		return pod, nil
	default:
		return pod, guardVersion(pod, request.Binding)
	}
}

// livePod returns the pod from the API server, or nil if there is none.
func (r *reader) livePod(ctx context.Context, name types.NamespacedName, reason string) (*corev1.Pod, *framework.Error) {
	pod := &corev1.Pod{}
	r.recorder.ReadLive("", "Pod", reason)
	if err := r.live.Get(ctx, name, pod); apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, unreadable(podObject(name), err)
	}
	return pod, nil
}

// node returns the target.
func (r *reader) node(ctx context.Context, name string) (*corev1.Node, *framework.Error) {
	node := &corev1.Node{}
	if err := r.cached.Get(ctx, types.NamespacedName{Name: name}, node); err == nil {
		return node, nil
	}
	return r.liveNode(ctx, name, runner.ReadMissing)
}

// liveNode returns the target from the API server.
func (r *reader) liveNode(ctx context.Context, name, reason string) (*corev1.Node, *framework.Error) {
	object := framework.Object{Kind: "Node", Name: name}
	node := &corev1.Node{}
	r.recorder.ReadLive("", "Node", reason)
	if err := r.live.Get(ctx, types.NamespacedName{Name: name}, node); apierrors.IsNotFound(err) {
		return nil, framework.AsError(framework.Binder, framework.Refuse(object, "not found").Advise("choose another node"))
	} else if err != nil {
		return nil, unreadable(object, err)
	}
	// The cache does not have them either.
	node.ManagedFields, node.Status.Images = nil, nil
	return node, nil
}

func unreadable(object framework.Object, err error) *framework.Error {
	return framework.AsError(framework.Binder, framework.FromAPI(object, "reading it from the API server", err).
		Advise("check that the API server responds and that Prebind has permission to read the object"))
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
	s.to.Add(notify.AllOfList(into, options.Namespace))
	return s.Reader.List(ctx, into, opts...)
}
