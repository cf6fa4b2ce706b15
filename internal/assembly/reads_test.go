// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package assembly

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
)

// An object that exists is found, or its read is an error: a plugin that does not find it would bind the pod too early.
func TestView_Get(t *testing.T) {
	s, nodes := newServer(t), make(chan *corev1.Node)
	mux := http.NewServeMux()
	mux.Handle("/", s.Config.Handler)
	mux.HandleFunc("GET /api/v1/nodes", func(w http.ResponseWriter, r *http.Request) {
		node := func() *corev1.Node {
			return &corev1.Node{TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{ResourceVersion: "1"}}
		}
		first, end := node(), node()
		first.Name, end.Annotations = "node-a", map[string]string{metav1.InitialEventsAnnotationKey: "true"}
		serveWatch(s, w, r, []*corev1.Node{first}, end, nodes)
	})
	s.Server = httptest.NewServer(mux)
	t.Cleanup(s.CloseClientConnections)
	s.installed.Store(true)
	s.gadgets = []*unstructured.Unstructured{newGadget("shop", "a", "r1")}
	a := newAssemblyAt(t, s)
	require.NoError(t, a.watch("test", &corev1.Node{}, newGadget("", "", "")))
	run(t, a)
	a.WaitForSync(t.Context())
	metadata, beta := &metav1.PartialObjectMetadata{}, newGadget("", "", "")
	metadata.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Node"))
	beta.SetAPIVersion("example.com/v1beta1")
	for name, tc := range map[string]struct {
		key   client.ObjectKey
		into  client.Object
		fails string
	}{
		"Node":         {key: client.ObjectKey{Name: "node-a"}, into: &corev1.Node{}},
		"Namespace":    {key: client.ObjectKey{Namespace: "shop", Name: "node-a"}, into: &corev1.Node{}},
		"OtherGoType":  {key: client.ObjectKey{Name: "node-a"}, into: metadata, fails: "read as *v1.PartialObjectMetadata of /v1, Kind=Node"},
		"Gadget":       {key: client.ObjectKey{Namespace: "shop", Name: "a"}, into: newGadget("", "", "")},
		"OtherVersion": {key: client.ObjectKey{Namespace: "shop", Name: "a"}, into: beta.DeepCopy(), fails: "of example.com/v1beta1, Kind=Gadget"},
	} {
		t.Run(name, func(t *testing.T) {
			err := a.Cached().Get(t.Context(), tc.key, tc.into)
			if tc.fails == "" {
				require.NoError(t, err)
				assert.Equal(t, tc.key.Name, tc.into.GetName())
				return
			}
			require.ErrorContains(t, err, tc.fails)
			assert.False(t, apierrors.IsNotFound(err))
		})
	}
	assert.ErrorContains(t, a.watch("other", beta), "of example.com/v1, Kind=Gadget, and as")

	gadgets, others := &unstructured.UnstructuredList{}, &unstructured.UnstructuredList{}
	gadgets.SetGroupVersionKind(gadgetKind.GroupVersion().WithKind("GadgetList"))
	others.SetGroupVersionKind(beta.GroupVersionKind().GroupVersion().WithKind("GadgetList"))
	names := &metav1.PartialObjectMetadataList{}
	names.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NodeList"))
	require.NoError(t, a.Cached().List(t.Context(), &corev1.NodeList{}))
	require.NoError(t, a.Cached().List(t.Context(), gadgets))
	for _, list := range []client.ObjectList{names, others} { // Also if no object matches.
		assert.ErrorContains(t, a.Cached().List(t.Context(), list, client.InNamespace("other")), "is watched as")
	}
}

// Reads of a kind whose objects were not read yet are an error.
func TestView_NotSynced(t *testing.T) {
	s := newServer(t)
	s.installed.Store(true)
	s.silent.Store(true)
	s.gadgets = []*unstructured.Unstructured{newGadget("shop", "a", "r1")}
	a := newAssemblyAt(t, s)
	require.NoError(t, a.watch("test", newGadget("", "", "")))
	require.NoError(t, a.useRegistered(gadgets, "test"))
	run(t, a)
	assert.False(t, a.Synced())
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(gadgetKind.GroupVersion().WithKind("GadgetList"))
	const starting = "have been read yet"
	assert.ErrorContains(t, a.Cached().Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: "a"}, newGadget("", "", "")), starting)
	assert.ErrorContains(t, a.Cached().List(t.Context(), list), starting)
	assert.ErrorContains(t, a.Cached().List(t.Context(), list, gadgets.Where("shop/a")), starting)
}

// allowList is a kind whose name ends with List, and allowListList is its list.
type (
	allowList     struct{ corev1.ConfigMap }
	allowListList struct{ corev1.ConfigMapList }
)

func TestKindSelection_NameThatEndsWithList(t *testing.T) {
	assert.Equal(t, KindSelection(&allowList{}).Name, framework.KindOf(&allowListList{}))
}
