// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/client"

	oldframework "github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/loop/framework"
)

// subscribing adds all that is read to a subscription, before it reads, so that no change is missed.
type subscribing struct {
	framework.Reader
	to *oldframework.Subscription
}

// Get implements client.Reader.
func (s subscribing) Get(ctx context.Context, key client.ObjectKey, into client.Object, opts ...client.GetOption) error {
	s.to.Add(oldframework.RefTo(into, key.Namespace, key.Name))
	return s.Reader.Get(ctx, key, into, opts...)
}

// List implements client.Reader.
func (s subscribing) List(ctx context.Context, into client.ObjectList, opts ...client.ListOption) error {
	if selected, ok := oldframework.SelectedBy(opts); ok {
		s.to.Add(selected.Changed(selected.Value))
		return s.Reader.List(ctx, into, opts...)
	}
	options := client.ListOptions{}
	options.ApplyOptions(opts)
	s.to.Add(oldframework.AllOfList(into, options.Namespace))
	return s.Reader.List(ctx, into, opts...)
}
