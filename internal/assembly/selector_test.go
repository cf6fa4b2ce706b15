// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package assembly

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/configuration"
	"github.com/prebind/prebind/internal/notify"
)

// run runs the manager until the test ends.
func run(t *testing.T, a *Assembly) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.Start(ctx) }()
	t.Cleanup(func() {
		stop()
		assert.NoError(t, <-ended)
	})
	<-a.Elected()
}

// handles is the registration of the plugin test that keeps the handle of its last instance.
func handles(h *framework.Handle) framework.Registration {
	r := keeping("test")
	build := r.New
	r.New = func(given framework.Handle, a framework.Arguments) (framework.Plugin, error) {
		*h = given
		return build(given, a)
	}
	return r
}

// gadgets is a selection of custom resources, by name.
var gadgets = framework.Selection{Name: "test/gadgets", Example: newGadget("", "", ""), Value: keyOf}

func keyOf(o client.Object) string { return client.ObjectKeyFromObject(o).String() }

// namesIn returns the names of the gadgets of the selection with the value.
func namesIn(t *testing.T, reader framework.Reader, s framework.Selection, value string) []string {
	t.Helper()
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(gadgetKind.GroupVersion().WithKind("GadgetList"))
	require.NoError(t, reader.List(t.Context(), list, s.Where(value)))
	var names []string
	for i := range list.Items {
		names = append(names, list.Items[i].GetName())
	}
	return names
}

// configured builds the plugins that are on by default.
func configured(t *testing.T, a *Assembly) {
	t.Helper()
	_, err := a.plugins(t.Context(), configuration.Default(a.o.Registry.Components()))
	require.NoError(t, err)
}

// A plugin watches a kind after it is installed and Prebind may watch it.
func TestSelector_Select(t *testing.T) {
	s, h := newServer(t), framework.Handle{}
	s.gadgets = []*unstructured.Unstructured{newGadget("shop", "a", "r1")}
	s.forbidden.Store(true)
	a := newAssemblyAt(t, s, handles(&h))
	a.o.Leads = func() bool { return true }
	configured(t, a)
	run(t, a)

	err := h.Select(t.Context(), gadgets)
	require.True(t, meta.IsNoMatchError(err), "%v", err)
	s.installed.Store(true)
	err = h.Select(t.Context(), gadgets)
	require.True(t, apierrors.IsForbidden(err), "%v", err)
	require.NoError(t, a.Denied(), "readiness does not depend on the selection")
	require.Error(t, h.Cached.List(t.Context(), &unstructured.UnstructuredList{}, gadgets.Where("shop/a")))
	s.forbidden.Store(false)
	require.NoError(t, h.Select(t.Context(), gadgets))
	assert.Equal(t, []string{"a"}, namesIn(t, h.Cached, gadgets, "shop/a"), "it has all objects")
	assert.Empty(t, namesIn(t, h.Cached, gadgets, "shop/b"))

	changes := a.Changes.Subscribe(notify.Selected(gadgets, "shop/b"))
	defer changes.Close()
	s.added <- newGadget("shop", "b", "r1")
	<-changes.C()
	assert.Equal(t, []string{"b"}, namesIn(t, h.Cached, gadgets, "shop/b"))
	require.NoError(t, h.Select(t.Context(), gadgets))
	assert.Len(t, s.watched(), 1, "a selection with the same name is kept")

	kinds, err := h.Discovery.ServerResourcesForGroupVersion("example.com/v1")
	require.NoError(t, err)
	assert.Equal(t, "gadgets", kinds.APIResources[0].Name)
	assert.True(t, h.Leads())

	all := gadgets
	all.Name, all.Value = "test/all", nil
	require.NoError(t, h.Select(t.Context(), all))
	assert.Equal(t, []string{"a"}, namesIn(t, h.Cached, all, ""))
	assert.Empty(t, namesIn(t, h.Cached, all, "x"))
}

func TestSelector_Invalid(t *testing.T) {
	u := &selector{plugin: "test"}
	foreign := gadgets
	foreign.Name = "other/gadgets"
	require.ErrorContains(t, u.Select(t.Context(), foreign), "Name must begin with test/")
	require.ErrorContains(t, u.Select(t.Context(), framework.Selection{Name: "test/x"}), "required")
}

// Select ends with its context if the API server does not answer. A later call continues.
func TestSelector_Timeout(t *testing.T) {
	s, h := newServer(t), framework.Handle{}
	s.installed.Store(true)
	s.silent.Store(true)
	a := newAssemblyAt(t, s, handles(&h))
	configured(t, a)
	run(t, a)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	require.ErrorContains(t, h.Select(ctx, gadgets), "did not begin in time")
	require.ErrorContains(t, h.Cached.List(t.Context(), &unstructured.UnstructuredList{}, gadgets.Where("shop/a")), "have been read yet")
	s.silent.Store(false)
	s.CloseClientConnections()
	require.NoError(t, h.Select(t.Context(), gadgets))
}

// A plugin adds selections concurrently. The race detector checks this test.
func TestSelector_IsSafeForConcurrentUse(t *testing.T) {
	s, h := newServer(t), framework.Handle{}
	s.installed.Store(true)
	r := handles(&h)
	r.Selections = func(string, framework.Arguments) []framework.Selection {
		registered := gadgets
		registered.Name = "test/registered"
		return []framework.Selection{registered}
	}
	a := newAssemblyAt(t, s, r)
	configured(t, a)
	run(t, a)
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			if err := h.Select(t.Context(), gadgets); err != nil {
				assert.NoError(t, err)
				return
			}
			assert.Empty(t, namesIn(t, h.Cached, gadgets, "shop/a"))
			h.Keep(sets.New(gadgets.Name))
		})
	}
	group.Wait()
	assert.Len(t, s.watched(), 2, "one for each name")
}

// A watch cannot continue if the permission is revoked or the kind is removed.
func TestSelector_Revoked(t *testing.T) {
	s, h := newServer(t), framework.Handle{}
	s.installed.Store(true)
	a := newAssemblyAt(t, s, handles(&h))
	configured(t, a)
	run(t, a)
	require.NoError(t, h.Select(t.Context(), gadgets))

	s.forbidden.Store(true)
	s.CloseClientConnections()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		assert.True(c, apierrors.IsForbidden(h.Select(t.Context(), gadgets)), "the watch has ended")
	}, time.Minute, 10*time.Millisecond)
	assert.Empty(t, namesIn(t, h.Cached, gadgets, "shop/a"), "the selection is kept")

	s.forbidden.Store(false)
	s.installed.Store(false)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		assert.True(c, apierrors.IsNotFound(h.Select(t.Context(), gadgets)), "the kind is gone")
	}, time.Minute, 10*time.Millisecond)
}
