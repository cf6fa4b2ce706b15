// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package assembly

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	toolscache "k8s.io/client-go/tools/cache"
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
			store := toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc, nil)
			require.NoError(t, store.Add(pod))
			a := &Assembly{selections: &selections{all: map[string]*selection{podKind: {example: &corev1.Pod{}, store: store}}}}
			err = (&view{a: a}).Get(t.Context(), client.ObjectKeyFromObject(pod), &corev1.Pod{})
			assert.Equal(t, tc.found, err == nil)
			assert.Equal(t, tc.found, !apierrors.IsNotFound(err))
		})
	}
}

func TestRegistryCheck(t *testing.T) {
	for name, tc := range map[string]struct {
		reason  string
		plugins []framework.Registration
		want    string
	}{
		"Different": {reason: "the names are unique", plugins: []framework.Registration{keeping("a"), keeping("b")}},
		"Twice":     {reason: "both would write under one name", plugins: []framework.Registration{keeping("a"), keeping("a")}, want: `PreBind plugin "a": registered twice, or another component has its name`},
		"Binder":    {reason: "Prebind itself has the name", plugins: []framework.Registration{keeping("binder")}, want: `PreBind plugin "binder": registered twice, or another component has its name`},
		"Key":       {reason: "its annotations would be invalid", plugins: []framework.Registration{keeping("a_b")}, want: `PreBind plugin "a_b": the name is not valid as part of an annotation key`},
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
	custom := keeping("custom")
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
