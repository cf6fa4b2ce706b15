// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package assembly

import (
	"bytes"
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	"k8s.io/apimachinery/pkg/watch"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	restwatch "k8s.io/client-go/rest/watch"

	"github.com/prebind/prebind/test/gen"
)

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
