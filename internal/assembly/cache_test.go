// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package assembly

import (
	"bytes"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	"k8s.io/apimachinery/pkg/watch"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	restwatch "k8s.io/client-go/rest/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/configuration"
	"github.com/prebind/prebind/test/gen"
)

func TestTrimNode(t *testing.T) {
	node := gen.Node("node-a", gen.Zone("z1"), gen.Ready(10))
	node.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubelet"}}
	node.Status.Images = []corev1.ContainerImage{{Names: []string{"large"}}}
	assert.Equal(t, gen.Node("node-a", gen.Zone("z1"), gen.Ready(10)), trimNode(node))
}

// Nodes of the same machine type share their lists of resources.
func TestTrimNode_SharesResources(t *testing.T) {
	trimmed := func(pods int64) *corev1.Node { return trimNode(gen.Node("node-a", gen.Ready(pods))) }
	first, same, other := trimmed(10).Status.Allocatable, trimmed(10).Status.Allocatable, trimmed(11).Status.Allocatable
	assert.Equal(t, reflect.ValueOf(first).Pointer(), reflect.ValueOf(same).Pointer())
	assert.Equal(t, "11", other.Pods().String())
}

func TestKindSelection_TrimsClaims(t *testing.T) {
	claim := gen.ResourceClaim("c", gen.RequestsDevices("gpu", 1))
	s := KindSelection(claim)
	require.NotNil(t, s.Transform)
	_, err := s.Transform(claim)
	require.NoError(t, err)
	assert.Empty(t, claim.Spec, "a tenant controls the size of the spec")
}

// The engine reads a pod from the API server that the cache does not have.
func TestView_LargePod(t *testing.T) {
	for name, tc := range map[string]struct {
		note  string
		found bool
	}{"Small": {note: "note", found: true}, "Large": {note: strings.Repeat("x", maxPod)}} {
		t.Run(name, func(t *testing.T) {
			pod := trimPod(gen.Pod("a", gen.UID("uid"), gen.Annotation("example.com/note", tc.note)))
			assert.Equal(t, pod.DeepCopy(), trimPod(pod), "an informer can transform an object twice")
			i := newInformer(framework.Selection{Example: &corev1.Pod{}}, nil)
			require.NoError(t, i.Replace([]any{pod}, "1"))
			s := &selections{all: map[string]*selection{podKind: {Informer: i}}}
			err := s.Get(t.Context(), client.ObjectKeyFromObject(pod), &corev1.Pod{})
			assert.Equal(t, tc.found, err == nil)
			assert.Equal(t, tc.found, !apierrors.IsNotFound(err))
		})
	}
}

// The Transform of a plugin can keep a pod without its UID.
func TestSelections_PodWithoutUID(t *testing.T) {
	racks := framework.Selection{Name: "racks/pods", Example: &corev1.Pod{}}
	i := newInformer(racks, nil)
	require.NoError(t, i.Replace([]any{gen.Pod("a", gen.UID(""))}, "1"))
	s := &selections{all: map[string]*selection{racks.Name: {Informer: i}}}
	assert.NoError(t, s.Get(t.Context(), client.ObjectKeyFromObject(gen.Pod("a")), &corev1.Pod{}, racks))
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
	a := newAssemblyAt(t, newServer(t), custom)
	scheme := a.GetScheme()
	got, err := apiutil.GVKForObject(&gizmo{}, scheme)
	require.NoError(t, err)
	assert.Equal(t, kind, got)
	for kind := range clientgoscheme.Scheme.AllKnownTypes() {
		assert.True(t, scheme.Recognizes(kind), kind)
	}
	assert.False(t, clientgoscheme.Scheme.Recognizes(kind), "the global scheme is not changed")

	broken := errors.New("broken")
	custom.AddToScheme = func(*runtime.Scheme) error { return broken }
	_, err = New(t.Context(), newServer(t).config(), Options{Registry: &configuration.Registry{Plugins: []framework.Registration{custom}}})
	require.ErrorIs(t, err, broken)
	assert.ErrorContains(t, err, "PreBind plugin custom")
}

// watched returns the event as the cache gets it from a watch of this media type.
func watched(t *testing.T, mediaType string, kind watch.EventType, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	codecs := clientgoscheme.Codecs.WithoutConversion()
	info, ok := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), mediaType)
	require.True(t, ok)
	raw, err := runtime.Encode(codecs.EncoderForVersion(info.Serializer, corev1.SchemeGroupVersion), pod)
	require.NoError(t, err)
	var body bytes.Buffer
	event := &metav1.WatchEvent{Type: string(kind), Object: runtime.RawExtension{Raw: raw}}
	require.NoError(t, info.StreamSerializer.Encode(event, info.StreamSerializer.NewFrameWriter(&body)))

	negotiator := runtime.NewClientNegotiator(briefSerializer{codecs}, corev1.SchemeGroupVersion)
	objects, stream, framer, err := negotiator.StreamDecoder(mediaType, nil)
	require.NoError(t, err)
	got, object, err := restwatch.NewDecoder(streaming.NewDecoder(framer.NewFrameReader(io.NopCloser(&body)), stream), objects).Decode()
	require.NoError(t, err)
	assert.Equal(t, kind, got)
	decoded, ok := object.(*corev1.Pod)
	require.True(t, ok, "%T", object)
	return decoded
}

// FuzzBriefSerializer checks that a watch in protobuf decodes only the metadata of a deleted pod, and everything else completely.
func FuzzBriefSerializer(f *testing.F) {
	typical := gen.Pod("web", gen.InNamespace("shop"), gen.UID("1"), gen.Version("7"), gen.Label("app", "web"), gen.UsesClaim("data"))
	typical.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl", FieldsV1: metav1.NewFieldsV1("{}")}}
	for _, pod := range []*corev1.Pod{typical, {}} {
		encoded, err := pod.Marshal()
		require.NoError(f, err)
		f.Add(encoded)
	}
	f.Fuzz(func(t *testing.T, encoded []byte) {
		pod := &corev1.Pod{}
		if pod.Unmarshal(encoded) != nil {
			return
		}
		pod.TypeMeta = metav1.TypeMeta{}
		for _, kind := range []watch.EventType{watch.Added, watch.Modified, watch.Bookmark, watch.Deleted} {
			want := pod
			if kind == watch.Deleted {
				want = &corev1.Pod{ObjectMeta: pod.ObjectMeta}
			}
			got := watched(t, runtime.ContentTypeProtobuf, kind, pod)
			assert.True(t, equality.Semantic.DeepEqual(want, got), "%s: got %v, want %v", kind, got, want)
		}
	})
}

// TestBriefSerializer_Others checks that what is not an object in protobuf is decoded as it is.
func TestBriefSerializer_Others(t *testing.T) {
	pod := gen.Pod("web", gen.UsesClaim("data"))
	pod.TypeMeta = metav1.TypeMeta{}
	assert.Equal(t, pod, watched(t, runtime.ContentTypeJSON, watch.Deleted, pod))
	for _, raw := range []string{"", "k8s", "k8s\x00", "k8s\x00\x12\x00", "k8s\x00\x12\x02\x12\x00", "{}"} {
		assert.Equal(t, raw, string(metadataOnly([]byte(raw))))
	}
}
