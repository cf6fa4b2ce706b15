// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"context"
	"fmt"
	"runtime/debug"

	"k8s.io/klog/v2"
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

// contained calls f and returns its panic as an error, so that a bug in a plugin fails one bind and
// not the process. A nil *framework.Error in an error is nil.
func contained(ctx context.Context, f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			klog.FromContext(ctx).Error(nil, "Plugin panicked", "panic", r, "stack", string(debug.Stack()))
			err = fmt.Errorf("the plugin panicked: %v; report the bug with the stack trace from Prebind's log", r)
		}
	}()
	err = f()
	if e, ok := err.(*framework.Error); ok && e == nil { //nolint:errorlint // Only this type, not a wrapped one.
		return nil
	}
	return err
}
