// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package golden

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"runtime/metrics"
	"strings"
	"testing"
	"testing/synctest"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	apijson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/mutators/bindinfo"
	"github.com/prebind/prebind/mutators/deviceinfo"
	"github.com/prebind/prebind/mutators/nodeinfo"
	"github.com/prebind/prebind/mutators/topology"
	"github.com/prebind/prebind/test/jsonpatch"
)

const (
	// aReview is the maximum allocation of an empty review in bytes, and perByte the additional allocation for each byte. A
	// review is decoded, stored by the fake API server, included in messages, and encoded again.
	aReview = 32 << 20
	perByte = 2000
	// anAnswer is the maximum length of a response without its patch, in bytes. It does not depend on the size of the review.
	anAnswer = 128 << 10
	// aPatch is the maximum length of a patch in bytes: 256 KiB of annotations, and up to six bytes of JSON for each byte.
	aPatch = 2 << 20
)

// everything enables all mutators and all plugins.
func everything() setup {
	return setup{
		mutators: []on{
			{topology.Name, &topology.Arguments{Labels: []string{"*"}, PodLabels: []string{"*"}}},
			{nodeinfo.Name, &nodeinfo.Arguments{Annotations: []string{"example.com/driver-version"}}},
			{name: bindinfo.Name}, {name: deviceinfo.Name},
		},
		plugins: []on{nodeState, devices, claims, volumes},
	}
}

// worlds returns the objects and the Binding of each golden case.
func worlds(t testing.TB) (objects [][]client.Object, bindings []*corev1.Binding) {
	t.Helper()
	answers, err := filepath.Glob(filepath.Join("testdata", "*.answer.yaml"))
	require.NoError(t, err)
	for _, path := range answers {
		name, _, _ := strings.Cut(filepath.Base(path), ".")
		o, b := read(t, name)
		objects, bindings = append(objects, o), append(bindings, b)
	}
	require.NotEmpty(t, bindings)
	return objects, bindings
}

// judge posts the body, and checks that Prebind does not panic, that its allocations are limited, and that the API server can
// read the response.
func judge(t *testing.T, objects []client.Object, body []byte) *httptest.ResponseRecorder {
	t.Helper()
	p := newPrebind(t, everything(), objects)
	before := allocated()
	w := p.serve(t, body)
	p.stop(t)
	assert.Less(t, allocated()-before, uint64(aReview+perByte*len(body)), "a review of %d bytes", len(body))
	if w.Code != http.StatusOK {
		assert.LessOrEqual(t, w.Body.Len(), anAnswer)
		var status metav1.Status
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &status), "%s", w.Body)
		assert.Equal(t, metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, status.TypeMeta)
		assert.Equal(t, int32(w.Code), status.Code)
		assert.NotEmpty(t, status.Message)
		return w
	}
	var asked, told admissionv1.AdmissionReview
	require.NoError(t, apijson.Unmarshal(body, &asked), "only a valid review gets a review as response")
	require.NoError(t, apijson.Unmarshal(w.Body.Bytes(), &told), "%s", w.Body)
	require.NotNil(t, told.Response)
	assert.LessOrEqual(t, len(told.Response.Patch), aPatch)
	assert.LessOrEqual(t, w.Body.Len()-base64.StdEncoding.EncodedLen(len(told.Response.Patch)), anAnswer)
	assert.Equal(t, asked.TypeMeta, told.TypeMeta)
	assert.Equal(t, asked.Request.UID, told.Response.UID)
	checkResponse(t, asked.Request, told.Response)
	return w
}

// checkResponse checks a response like the API server.
func checkResponse(t *testing.T, asked *admissionv1.AdmissionRequest, told *admissionv1.AdmissionResponse) {
	t.Helper()
	for _, warning := range told.Warnings {
		assert.True(t, utf8.ValidString(warning) && !strings.ContainsAny(warning, "\n\r\x00"), "%q", warning)
	}
	assert.Equal(t, told.Patch != nil, told.PatchType != nil, "a patch has a type")
	if !told.Allowed {
		assert.Nil(t, told.Patch, "a denial contains no patch")
		require.NotNil(t, told.Result, "a denial contains a reason")
		assert.GreaterOrEqual(t, told.Result.Code, int32(http.StatusBadRequest))
		assert.NotEmpty(t, told.Result.Message)
		assert.NotContains(t, told.Result.Message, "panicked")
		return
	}
	if told.Patch == nil {
		return
	}
	// The API server sends requests without duplicate keys.
	var object map[string]any
	require.NoError(t, json.Unmarshal(asked.Object.Raw, &object))
	raw, err := json.Marshal(object)
	require.NoError(t, err)
	patched, err := jsonpatch.Apply(raw, types.JSONPatchType, told.Patch)
	require.NoError(t, err, "%s of %s", told.Patch, raw)
	require.NoError(t, apijson.Unmarshal(patched, &corev1.Binding{}), "%s", patched)
}

// allocated returns the bytes that this process has allocated since its start.
func allocated() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

// FuzzReview posts arbitrary bytes to Prebind with all components, with the objects of the golden cases.
func FuzzReview(f *testing.F) {
	objects, bindings := worlds(f)
	for i, b := range bindings {
		f.Add(reviewOf(b, false), uint8(i))
		f.Add(reviewOf(b, true), uint8(i))
	}
	for _, body := range []string{
		"", "null", strings.Repeat("[", 1<<16),
		`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"1"}}`,
		`{"kind":"AdmissionReview","ApiVersion":"admission.k8s.io/v1","request":{"uid":"0"}}`,
		`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"1","operation":"CREATE",` +
			`"resource":{"version":"v1","resource":"bindings"},"kind":{"version":"v1","kind":"Binding"},"object":null}}`,
	} {
		f.Add([]byte(body), uint8(0))
	}
	long := strings.Repeat("<", 1<<20)
	for _, field := range []string{"uid", "name", "namespace", "operation", "kind", "apiVersion", "resource", "username"} {
		body := reviewOf(bindings[0], false)
		f.Add(regexp.MustCompile(`"`+field+`":"[^"]*"`).ReplaceAll(body, []byte(`"`+field+`":"`+long+`"`)), uint8(0))
	}
	f.Fuzz(func(t *testing.T, body []byte, at uint8) {
		synctest.Test(t, func(t *testing.T) { judge(t, objects[int(at)%len(objects)], body) })
	})
}

// FuzzBinding changes the Bindings and the pods of the golden cases: annotations and a label with any key and value, and any
// node. The review itself is always valid.
func FuzzBinding(f *testing.F) {
	objects, bindings := worlds(f)
	for i, b := range bindings {
		for key, value := range b.Annotations {
			f.Add(uint8(i), key, value, "binder.prebind.dev/timeout", "3s", b.Target.Name, false)
		}
		f.Add(uint8(i), "device.prebind.dev/gpu", "GPU-0,GPU-1:0.5", "node-state.prebind.dev/expect", "a in (b,c),!d", b.Target.Name, true)
		f.Add(uint8(i), "binder.prebind.dev/require", "device,node-state", "device.prebind.dev/node-lock", "true", b.Target.Name, false)
		f.Add(uint8(i), strings.Repeat("b/d", 10_000), strings.Repeat("<", 1<<15), "binder.prebind.dev/require", strings.Repeat("<,", 1<<14), strings.Repeat("<", 1<<16), false)
		f.Add(uint8(i), "a b", "\xff", "resource-claims.prebind.dev/x.y", "\x00", "../"+b.Target.Name, false)
	}
	f.Fuzz(func(t *testing.T, at uint8, key, value, podKey, podValue, node string, dryRun bool) {
		synctest.Test(t, func(t *testing.T) {
			var world []client.Object
			for _, o := range objects[int(at)%len(objects)] {
				if pod, ok := o.(*corev1.Pod); ok {
					pod = pod.DeepCopy()
					metav1.SetMetaDataAnnotation(&pod.ObjectMeta, podKey, podValue)
					o = pod
				}
				world = append(world, o)
			}
			b := bindings[int(at)%len(bindings)].DeepCopy()
			metav1.SetMetaDataAnnotation(&b.ObjectMeta, key, value)
			b.Labels = map[string]string{key: value}
			b.Target.Name = node
			assert.Equal(t, http.StatusOK, judge(t, world, reviewOf(b, dryRun)).Code, "the response to a review is a review")
		})
	})
}
