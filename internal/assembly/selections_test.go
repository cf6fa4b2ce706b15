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
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	toolscache "k8s.io/client-go/tools/cache"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/configuration"
	"github.com/prebind/prebind/internal/notify"
	"github.com/prebind/prebind/test/gen"
)

func labelOf(o client.Object) string { return o.GetLabels()["rack"] }

var racks = framework.Selection{Name: "test/racks", Example: &corev1.Pod{}, Value: labelOf}

// A selection that is no longer used ends after a time, unless it is used again.
func TestSelections_Keep(t *testing.T) {
	ended := sets.New[*selection]()
	used := func(by string) *selection {
		s := &selection{user: by}
		s.stop = func() { ended.Insert(s) }
		return s
	}
	now, a, b, c, registered := clocktesting.NewFakeClock(time.Time{}.Add(time.Hour)), used(""), used(""), used(""), used("PreBind plugin one")
	s := &selections{clock: now, all: map[string]*selection{"one/a": a, "one/b": b, "other/c": c, "one/registered": registered}}
	s.keep("one", nil)
	now.Step(selectionLingers / 2)
	s.keep("one", nil)
	assert.Same(t, a, s.use("one/a", nil))
	now.Step(selectionLingers / 2)
	s.keep("one", nil)
	assert.Equal(t, sets.New("one/a", "other/c", "one/registered"), sets.KeySet(s.all))
	assert.True(t, ended.Has(b))
	assert.Nil(t, s.use("one/b", nil), "it must be started again")
	s.keep("one", sets.New("one/a"))
	now.Step(selectionLingers)
	s.keep("one", nil)
	assert.False(t, ended.Has(a), "it was named")
	now.Step(selectionLingers)
	s.keep("one", nil)
	assert.True(t, ended.Has(a))
}

// A plugin reads a kind through its reader, and a change wakes its waits. A second plugin uses the same watch.
func TestWatch(t *testing.T) {
	s := newServer(t)
	a := newAssemblyAt(t, s)
	require.NoError(t, a.watch("test", &corev1.Pod{}))
	require.NoError(t, a.watch("other", &corev1.Pod{}))
	run(t, a)
	a.WaitForSync(t.Context())
	require.Len(t, s.watched(), 1)
	assert.Equal(t, "spec.nodeName=", s.watched()[0].Get("fieldSelector"), "the cache does not grow with running pods")

	reader, pod := a.Cached(), gen.Pod("a", gen.UID("uid"), gen.Version("2"), gen.Label("app", "web"))
	named, inNamespace := a.Changes.Subscribe(notify.RefTo(pod, pod.Namespace, pod.Name)), a.Changes.Subscribe(notify.RefTo(pod, pod.Namespace, ""))
	require.True(t, apierrors.IsNotFound(reader.Get(t.Context(), client.ObjectKeyFromObject(pod), &corev1.Pod{})))
	s.pods <- pod
	<-named.C()
	<-inNamespace.C()
	got := &corev1.Pod{}
	require.NoError(t, reader.Get(t.Context(), client.ObjectKeyFromObject(pod), got))
	assert.Equal(t, pod.UID, got.UID)
	var pods corev1.PodList
	for name, tc := range map[string]struct {
		by   client.ListOption
		want int
	}{
		"Namespace":       {by: client.InNamespace(pod.Namespace), want: 1},
		"Other namespace": {by: client.InNamespace("other")},
		"Labels":          {by: client.MatchingLabels{"app": "web"}, want: 1},
		"Other labels":    {by: client.MatchingLabels{"app": "other"}},
	} {
		require.NoError(t, reader.List(t.Context(), &pods, tc.by), name)
		assert.Len(t, pods.Items, tc.want, name)
	}
	require.ErrorContains(t, reader.List(t.Context(), &pods, client.MatchingFields{"spec.nodeName": "a"}), "use a Selection with a Value")
}

func TestSelections_ListUnknown(t *testing.T) {
	v := &selections{all: map[string]*selection{}}
	err := v.List(t.Context(), &corev1.PodList{}, racks.Where("r1"))
	require.EqualError(t, v.Get(t.Context(), client.ObjectKey{Name: "a"}, &corev1.Pod{}, racks), err.Error())
	require.EqualError(t, err, `"test/racks" is not among the watches and selections of the plugin's registration, and Select has not added it`)
	for _, err := range []error{v.List(t.Context(), &corev1.PodList{}), v.Get(t.Context(), client.ObjectKey{Name: "a"}, &corev1.Pod{})} {
		require.ErrorContains(t, err, `"Pod" is not among the watches`)
	}
}

// A plugin reads a selection through its reader, and a change wakes its waits.
func TestSelections_Use(t *testing.T) {
	agents := framework.Selection{
		Name: "test/agents", Example: &corev1.Pod{}, Namespace: "kube-system", Labels: labels.SelectorFromSet(labels.Set{"app": "agent"}),
		Fields: fields.OneTermEqualSelector("status.phase", "Running"), Value: labelOf,
		Transform: func(o any) (any, error) {
			if pod, ok := o.(*corev1.Pod); ok {
				pod.Annotations = nil
			}
			return o, nil
		},
	}
	s := newServer(t)
	a, h := running(t, s, agents)
	a.WaitForSync(t.Context())
	require.Len(t, s.watches, 1)
	assert.Equal(t, "app=agent", s.watches[0].Get("labelSelector"))
	assert.Equal(t, "status.phase=Running", s.watches[0].Get("fieldSelector"))

	reader, changes := h.Cached, a.Changes.Subscribe(notify.Selected(agents, "r1"))
	list := func(rack string) []string {
		var pods corev1.PodList
		require.NoError(t, reader.List(t.Context(), &pods, agents.Where(rack)))
		var names []string
		for _, pod := range pods.Items {
			assert.Empty(t, pod.Annotations, "the transform applies")
			names = append(names, pod.Name)
		}
		return names
	}
	assert.Empty(t, list("r1"))
	send := func(name, rack string) {
		pod := gen.Pod(name, gen.InNamespace("kube-system"), gen.UID(types.UID(name)), gen.Label("rack", rack), gen.Annotation("note", "long"))
		pod.ResourceVersion = "2"
		s.pods <- pod
	}
	pod := &corev1.Pod{}
	get := func(name string) error {
		return reader.Get(t.Context(), client.ObjectKey{Namespace: "kube-system", Name: name}, pod, agents)
	}
	assert.True(t, apierrors.IsNotFound(get("agent-1")))
	named := a.Changes.Subscribe(notify.RefTo(pod, "kube-system", "agent-1"))
	send("agent-2", "")
	send("agent-1", "r1")
	<-changes.C()
	<-named.C()
	require.NoError(t, get("agent-1"))
	assert.Equal(t, types.UID("agent-1"), pod.UID)
	assert.Empty(t, pod.Annotations)
	assert.Equal(t, []string{"agent-1"}, list("r1"))
	assert.Equal(t, []string{"agent-2"}, list(""), "an empty value selects the objects without one")
}

// A change wakes the waits for the value before and after it.
func TestWakeBy(t *testing.T) {
	pod := func(rack string) *corev1.Pod { return gen.Pod("a", gen.Label("rack", rack)) }
	for name, tc := range map[string]struct {
		reason string
		event  func(h toolscache.ResourceEventHandler)
		want   []string
	}{
		"Added":     {reason: "the object is new", event: func(h toolscache.ResourceEventHandler) { h.OnAdd(pod("r1"), false) }, want: []string{"r1"}},
		"Moved":     {reason: "the value has changed", event: func(h toolscache.ResourceEventHandler) { h.OnUpdate(pod("r1"), pod("r2")) }, want: []string{"r1", "r2"}},
		"Deleted":   {reason: "the object is gone", event: func(h toolscache.ResourceEventHandler) { h.OnDelete(pod("r2")) }, want: []string{"r2"}},
		"No object": {reason: "an event that is not one of an object", event: func(h toolscache.ResourceEventHandler) { h.OnAdd("a", false) }},
	} {
		t.Run(name, func(t *testing.T) {
			a := &Assembly{Changes: notify.NewHub()}
			subscriptions := map[string]*notify.Subscription{}
			for _, rack := range []string{"r1", "r2"} {
				subscriptions[rack] = a.Changes.Subscribe(notify.Selected(racks, rack))
			}
			named := a.Changes.Subscribe(notify.RefTo(&corev1.Pod{}, "default", "a"))
			tc.event(a.wakeBy(racks))
			assert.Equal(t, len(tc.want) > 0, len(named.C()) > 0, "also those for its name")
			var got []string
			for _, rack := range []string{"r1", "r2"} {
				select {
				case <-subscriptions[rack].C():
					got = append(got, rack)
				default:
				}
			}
			assert.Equal(t, tc.want, got, tc.reason)
		})
	}
}

// Two values can share a bucket of the index.
func TestListFrom_SharedBucket(t *testing.T) {
	store := toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc, toolscache.Indexers{
		bucketIndex: func(any) ([]string, error) { return []string{bucketOf("node-a")}, nil },
	})
	for name, node := range map[string]string{"a": "node-a", "b": "node-b", "c": "node-a"} {
		require.NoError(t, store.Add(gen.Pod(name, gen.BoundTo(node))))
	}
	selection := framework.Selection{Name: "test/pods", Value: func(o client.Object) string {
		pod, ok := o.(*corev1.Pod)
		require.True(t, ok)
		return pod.Spec.NodeName
	}}
	var pods corev1.PodList
	require.NoError(t, listFrom(store, &pods, framework.Selected{Selection: selection, Value: "node-a"}, &client.ListOptions{}))
	var names []string
	for i := range pods.Items {
		names = append(names, pods.Items[i].Name)
	}
	assert.ElementsMatch(t, []string{"a", "c"}, names)
	require.NoError(t, listFrom(store, &pods, framework.Selected{Selection: selection, Value: "node-a"}, &client.ListOptions{Limit: 1}))
	assert.Len(t, pods.Items, 1, "a limit counts the objects with the value")
	selection.Value = nil
	require.NoError(t, listFrom(store, &pods, framework.Selected{Selection: selection}, &client.ListOptions{}))
	assert.Len(t, pods.Items, 3, "a list without the function returns all objects")
}

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

// running returns a running Assembly with the plugin test, and the handle of the plugin.
func running(t *testing.T, s *apiServer, selections ...framework.Selection) (*Assembly, *framework.Handle) {
	t.Helper()
	h, r := &framework.Handle{}, keeping("test")
	build := r.New
	r.New = func(given framework.Handle, a framework.Arguments) (framework.Plugin, error) {
		*h = given
		return build(given, a)
	}
	r.Selections = func(string, framework.Arguments) []framework.Selection { return selections }
	a := newAssemblyAt(t, s, r)
	configured(t, a)
	run(t, a)
	return a, h
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
	_, err := a.plugins(configuration.Default(a.o.Registry))
	require.NoError(t, err)
}

// A plugin watches a kind after it is installed and Prebind may watch it.
func TestSelector_Select(t *testing.T) {
	s := newServer(t)
	s.gadgets = []*unstructured.Unstructured{newGadget("shop", "a", "r1")}
	s.forbidden.Store(true)
	a, h := running(t, s)

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

// Select does not end a selection of a registration, whose handlers and readiness it does not know.
func TestSelector_Registered(t *testing.T) {
	s := newServer(t)
	s.installed.Store(true)
	s.forbidden.Store(true)
	a, h := running(t, s, gadgets)
	require.True(t, apierrors.IsForbidden(h.Select(t.Context(), gadgets)))
	assert.NotNil(t, a.selections.use(gadgets.Name, nil))
	assert.ErrorContains(t, a.Denied(), "PreBind plugin test")
}

func TestSelector_Invalid(t *testing.T) {
	foreign := gadgets
	foreign.Name = "other/gadgets"
	a, h := running(t, newServer(t))
	require.ErrorContains(t, h.Select(t.Context(), foreign), "Name must begin with test/")
	require.ErrorContains(t, h.Select(t.Context(), framework.Selection{Name: "test/x"}), "required")
	require.ErrorContains(t, h.Select(t.Context(), framework.Selection{Name: "test/nodes", Example: &corev1.Node{}, Scope: meta.RESTScopeNameNamespace}),
		"cluster-scoped; remove namespace")
	require.ErrorContains(t, h.Select(t.Context(), framework.Selection{Name: "test/pod", Example: &corev1.Pod{}, Scope: meta.RESTScopeNameRoot}),
		"namespaced; add namespace")
	metadata := &metav1.PartialObjectMetadata{}
	metadata.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Node"))
	require.ErrorContains(t, h.Select(t.Context(), framework.Selection{Name: "test/names", Example: metadata}), "cannot watch *v1.PartialObjectMetadata")
	pods := framework.Selection{Name: "test/pods", Example: &corev1.Pod{}}
	require.NoError(t, h.Select(t.Context(), pods))
	assert.ErrorContains(t, a.useRegistered(pods, "test"), "New must not call Select")
}

// Select ends with its context if the API server does not answer. A later call continues.
func TestSelector_Timeout(t *testing.T) {
	s := newServer(t)
	s.installed.Store(true)
	s.silent.Store(true)
	_, h := running(t, s)
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
	s, registered := newServer(t), gadgets
	s.installed.Store(true)
	registered.Name = "test/registered"
	_, h := running(t, s, registered)
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
	s := newServer(t)
	s.installed.Store(true)
	_, h := running(t, s)
	require.NoError(t, h.Select(t.Context(), gadgets))

	s.forbidden.Store(true)
	s.CloseClientConnections()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		assert.True(c, apierrors.IsForbidden(h.Select(t.Context(), gadgets)), "the watch has ended")
	}, time.Minute, 10*time.Millisecond)
	assert.Empty(t, namesIn(t, h.Cached, gadgets, "shop/a"), "the selection is kept")

	s.forbidden.Store(false)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		assert.NoError(c, h.Select(t.Context(), gadgets), "the watch has begun again")
	}, time.Minute, 10*time.Millisecond)

	s.installed.Store(false)
	s.CloseClientConnections()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		assert.True(c, apierrors.IsNotFound(h.Select(t.Context(), gadgets)), "the kind is gone")
	}, time.Minute, 10*time.Millisecond)
}

// A kind can be deleted and created again with another scope or plural.
func TestSelector_KindRecreated(t *testing.T) {
	s := newServer(t)
	s.gadget.Store(&metav1.APIResource{Name: "gadgets", Kind: "Gadget"})
	s.installed.Store(true)
	_, h := running(t, s)
	namespaced := gadgets
	namespaced.Scope = meta.RESTScopeNameNamespace
	require.ErrorContains(t, h.Select(t.Context(), namespaced), "cluster-scoped; remove namespace")
	s.gadget.Store(&metav1.APIResource{Name: "gadgets", Kind: "Gadget", Namespaced: true})
	require.NoError(t, h.Select(t.Context(), namespaced))

	s.gadget.Store(&metav1.APIResource{Name: "gizmos", Kind: "Gadget", Namespaced: true})
	s.CloseClientConnections()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		assert.True(c, apierrors.IsNotFound(h.Select(t.Context(), namespaced)), "the watch has ended")
	}, time.Minute, 10*time.Millisecond)
	require.NoError(t, h.Select(t.Context(), namespaced))
}
