// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package assembly

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/gen"
)

func TestTrimNode(t *testing.T) {
	node := gen.Node("node-a", gen.Zone("z1"), gen.Ready(10))
	node.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubelet"}}
	node.Status.Images = []corev1.ContainerImage{{Names: []string{"large"}}}
	got, err := trimNode(node)
	require.NoError(t, err)
	assert.Equal(t, gen.Node("node-a", gen.Zone("z1"), gen.Ready(10)), got)
	got, err = trimNode("something else")
	require.NoError(t, err)
	assert.Equal(t, "something else", got)
}

// managerOf is a manager with this cache.
type managerOf struct {
	ctrl.Manager
	cache cache.Cache
}

func (m managerOf) GetCache() cache.Cache { return m.cache }

// podCache is a cache of one pod.
type podCache struct {
	cache.Cache
	pod *corev1.Pod
}

func (c podCache) Get(_ context.Context, _ client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	if pod, ok := into.(*corev1.Pod); ok {
		c.pod.DeepCopyInto(pod)
	}
	return nil
}

// The engine reads a pod from the API server that the cache does not have.
func TestView_LargePod(t *testing.T) {
	for name, tc := range map[string]struct {
		note  string
		found bool
	}{"Small": {note: "note", found: true}, "Large": {note: strings.Repeat("x", maxPod)}} {
		t.Run(name, func(t *testing.T) {
			trimmed, err := trimPod(gen.Pod("a", gen.UID("uid"), gen.Annotation("example.com/note", tc.note)))
			require.NoError(t, err)
			again, err := trimPod(trimmed)
			require.NoError(t, err)
			assert.Equal(t, trimmed, again, "an informer can transform an object twice")
			pod, ok := trimmed.(*corev1.Pod)
			require.True(t, ok)
			a := &Assembly{Manager: managerOf{cache: podCache{pod: pod}}}
			err = (&view{a: a}).Get(t.Context(), client.ObjectKeyFromObject(pod), &corev1.Pod{})
			assert.Equal(t, tc.found, err == nil)
			assert.Equal(t, tc.found, !apierrors.IsNotFound(err))
		})
	}
}

func narrows(name string, kinds ...client.Object) framework.Registration {
	return framework.Registration{
		Name: name, Description: "d",
		New: func(framework.Handle, framework.Arguments) (framework.Plugin, error) { return nil, nil },
		Caches: func(string) map[client.Object]cache.ByObject {
			all := map[client.Object]cache.ByObject{}
			for _, kind := range kinds {
				all[kind] = cache.ByObject{}
			}
			return all
		},
	}
}

// A plugin reads a kind that only other plugins narrow from the complete cache.
func TestView_Of(t *testing.T) {
	shared := func(string) map[client.Object]cache.ByObject {
		return map[client.Object]cache.ByObject{&corev1.PersistentVolume{}: {Transform: trimNode}}
	}
	volumes, ready := keeping("volumebinding"), keeping("node-ready")
	volumes.Caches, ready.Caches = shared, shared
	a := newAssembly(t)
	var err error
	a.narrowed, err = (&Registry{Plugins: []framework.Registration{narrows("device", &corev1.ConfigMap{}), volumes, ready, keeping("other")}}).narrowings("")
	require.NoError(t, err)
	for plugin, tc := range map[string]struct {
		reason string
		want   map[client.Object]cache.Cache
	}{
		"device":        {reason: "the plugin needs only its own ConfigMaps", want: map[client.Object]cache.Cache{&corev1.ConfigMap{}: a.GetCache(), &corev1.PersistentVolume{}: a.complete}},
		"volumebinding": {reason: "the plugin needs only some fields of volumes", want: map[client.Object]cache.Cache{&corev1.ConfigMap{}: a.complete, &corev1.PersistentVolume{}: a.GetCache()}},
		"node-ready":    {reason: "the plugin narrows volumes in the same way", want: map[client.Object]cache.Cache{&corev1.PersistentVolume{}: a.GetCache()}},
		"other":         {reason: "the plugin narrows nothing", want: map[client.Object]cache.Cache{&corev1.ConfigMap{}: a.complete, &corev1.Pod{}: a.GetCache()}},
		"":              {reason: "mutators narrow nothing", want: map[client.Object]cache.Cache{&corev1.PersistentVolume{}: a.complete, &corev1.Node{}: a.GetCache()}},
	} {
		t.Run(plugin, func(t *testing.T) {
			for example, want := range tc.want {
				assert.Equal(t, want, (&view{a: a, plugin: plugin}).of(example), "%s: %T", tc.reason, example)
			}
		})
	}
	assert.Equal(t, a.complete, (&view{a: a}).of(&corev1.ConfigMapList{}), "lists come from the same cache")
	assert.NotEqual(t, a.complete, a.GetCache())
}

func TestRegistryCheck(t *testing.T) {
	shared := func(name string, change func(b *cache.ByObject)) framework.Registration {
		r := narrows(name)
		r.Caches = func(string) map[client.Object]cache.ByObject {
			how := cache.ByObject{Transform: trimNode}
			change(&how)
			return map[client.Object]cache.ByObject{&corev1.ConfigMap{}: how}
		}
		return r
	}
	trims := shared("a", func(*cache.ByObject) {})
	for name, tc := range map[string]struct {
		reason  string
		plugins []framework.Registration
		want    string
	}{
		"Shared": {reason: "both narrow the kind by the same function", plugins: []framework.Registration{trims, shared("b", func(*cache.ByObject) {})}},
		"OtherTransform": {
			reason: "an object cannot have two forms", plugins: []framework.Registration{trims, shared("b", func(b *cache.ByObject) { b.Transform = trimPod })},
			want: `PreBind plugin "b": Caches must not contain ConfigMap, which a already narrows in another way`,
		},
		"OtherSelector": {
			reason: "one plugin would miss objects", plugins: []framework.Registration{trims, shared("b", func(b *cache.ByObject) { b.Label = labels.Nothing() })},
			want: `PreBind plugin "b": Caches must not contain ConfigMap, which a already narrows in another way`,
		},
		"Different": {reason: "each kind is narrowed by one plugin", plugins: []framework.Registration{narrows("a", &corev1.ConfigMap{}), narrows("b", &corev1.Secret{})}},
		"Same":      {reason: "the two selectors cannot be combined", plugins: []framework.Registration{narrows("a", &corev1.ConfigMap{}), narrows("b", &corev1.ConfigMap{})}, want: `PreBind plugin "b": Caches must not contain ConfigMap, which a already narrows in another way`},
		"Twice":     {reason: "both would write under one name", plugins: []framework.Registration{narrows("a"), narrows("a")}, want: `PreBind plugin "a": registered twice, or another component has its name`},
		"Binder":    {reason: "Prebind itself has the name", plugins: []framework.Registration{narrows("binder")}, want: `PreBind plugin "binder": registered twice, or another component has its name`},
		"Key":       {reason: "its annotations would be invalid", plugins: []framework.Registration{narrows("a_b")}, want: `PreBind plugin "a_b": the name is not valid as part of an annotation key`},
		"Pod":       {reason: "Prebind narrows pods itself", plugins: []framework.Registration{narrows("a", &corev1.Pod{})}, want: `PreBind plugin "a": Caches must not contain Pod, which Prebind already narrows in another way`},
	} {
		t.Run(name, func(t *testing.T) {
			err := (&Registry{Plugins: tc.plugins}).Check()
			if tc.want == "" {
				require.NoError(t, err, tc.reason)
			} else {
				require.ErrorContains(t, err, tc.want, tc.reason)
			}
		})
	}
}

// gizmo is a Go type of a custom resource.
type gizmo struct{ corev1.ConfigMap }

// The types of plugins are those of the manager only.
func TestNew_Scheme(t *testing.T) {
	custom := narrows("custom")
	kind := schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "gizmo"}
	custom.AddToScheme = func(s *runtime.Scheme) error {
		s.AddKnownTypes(kind.GroupVersion(), &gizmo{})
		return nil
	}
	a := newAssembly(t, custom)
	scheme := a.GetScheme()
	got, err := apiutil.GVKForObject(&gizmo{}, scheme)
	require.NoError(t, err)
	assert.Equal(t, kind, got)
	assert.Empty(t, missingIn(scheme, clientgoscheme.Scheme))
	assert.False(t, clientgoscheme.Scheme.Recognizes(kind), "the global scheme is not changed")

	broken := errors.New("broken")
	custom.AddToScheme = func(*runtime.Scheme) error { return broken }
	_, err = New(t.Context(), newServer(t).config(), Options{Registry: &Registry{Plugins: []framework.Registration{custom}}})
	require.ErrorIs(t, err, broken)
	assert.ErrorContains(t, err, "PreBind plugin custom")
}

// missingIn returns the kinds that the scheme lacks.
func missingIn(s, other *runtime.Scheme) []schema.GroupVersionKind {
	var missing []schema.GroupVersionKind
	for kind := range other.AllKnownTypes() {
		if !s.Recognizes(kind) {
			missing = append(missing, kind)
		}
	}
	return missing
}
