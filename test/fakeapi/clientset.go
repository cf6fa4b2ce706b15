// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package fakeapi

import (
	"fmt"
	"strconv"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"

	"github.com/prebind/prebind/test/jsonpatch"
)

// Clientset is client-go's fake, which has watches, with what it lacks of the first two
// points of the contract of Server: versions, UIDs, and conflicts.
type Clientset struct {
	*fake.Clientset
	tracker clienttesting.ObjectTracker
	mu      sync.Mutex
	version int
}

// NewClientset returns one with the objects.
func NewClientset(objects ...runtime.Object) *Clientset {
	// fake.NewClientset keeps managedFields, which takes 30 times as long as the rest.
	tracker := clienttesting.NewObjectTracker(scheme.Scheme, scheme.Codecs.UniversalDecoder())
	c := &Clientset{Clientset: &fake.Clientset{}, tracker: tracker, version: firstVersion}
	c.AddReactor("*", "*", clienttesting.ObjectReaction(tracker))
	c.AddWatchReactor("*", func(action clienttesting.Action) (handled bool, w watch.Interface, err error) {
		w, err = tracker.Watch(action.GetResource(), action.GetNamespace())
		return true, w, err
	})
	for _, o := range objects {
		o = o.DeepCopyObject()
		c.stamp(o)
		if err := c.tracker.Add(o); err != nil {
			panic(err) // The test's object has no kind.
		}
	}
	for _, verb := range []string{"create", "update", "patch"} {
		c.PrependReactor(verb, "*", c.write)
	}
	return c
}

// Tracker implements clienttesting.FakeClient.
func (c *Clientset) Tracker() clienttesting.ObjectTracker { return c.tracker }

// stamp gives the object the next version, and a UID where it has none. It must be called
// with mu held, or before the clientset is used.
func (c *Clientset) stamp(o runtime.Object) {
	c.version++
	if m, err := meta.Accessor(o); err == nil {
		m.SetResourceVersion(strconv.Itoa(c.version))
		if m.GetUID() == "" {
			m.SetUID(types.UID(fmt.Sprintf("uid-%d", c.version)))
		}
	}
}

func (c *Clientset) write(action clienttesting.Action) (handled bool, o runtime.Object, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	gvr, ns := action.GetResource(), action.GetNamespace()
	switch action := action.(type) {
	case clienttesting.CreateActionImpl:
		o := action.GetObject().DeepCopyObject()
		c.stamp(o)
		return true, o, c.tracker.Create(gvr, o, ns)
	case clienttesting.UpdateActionImpl:
		o = action.GetObject().DeepCopyObject()
	case clienttesting.PatchActionImpl:
		was, err := c.tracker.Get(gvr, ns, action.GetName())
		if err != nil {
			return true, nil, err
		}
		if o, err = jsonpatch.To(was, action.GetPatchType(), action.GetPatch()); err != nil {
			return true, nil, Invalid("%v", err)
		}
	default:
		return false, nil, nil
	}
	now, err := meta.Accessor(o)
	if err != nil {
		return true, nil, err
	}
	stored, err := c.tracker.Get(gvr, ns, now.GetName())
	if err != nil {
		return true, nil, err
	}
	was, err := meta.Accessor(stored)
	if err != nil {
		return true, nil, err
	}
	if version := now.GetResourceVersion(); version != "" && version != was.GetResourceVersion() || now.GetUID() != "" && now.GetUID() != was.GetUID() {
		return true, nil, apierrors.NewConflict(gvr.GroupResource(), now.GetName(), fmt.Errorf("the object has been modified"))
	}
	now.SetUID(was.GetUID())
	c.stamp(o)
	return true, o, c.tracker.Update(gvr, o, ns)
}
