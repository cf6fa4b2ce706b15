// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/notify"
)

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
