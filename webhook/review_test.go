// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	apijson "k8s.io/apimachinery/pkg/util/json"

	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/test/jsonpatch"
)

// checkStatus checks that the body is a Status with this code and a message that contains says.
func checkStatus(t *testing.T, w *httptest.ResponseRecorder, code int32, says string) {
	t.Helper()
	var status metav1.Status
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &status), "the body is JSON: %s", w.Body)
	assert.Equal(t, "application/json", w.Header().Get("Content-Type"))
	assert.Equal(t, metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, status.TypeMeta)
	assert.Equal(t, metav1.StatusFailure, status.Status)
	assert.Equal(t, code, status.Code)
	assert.NotEmpty(t, status.Reason)
	assert.Contains(t, status.Message, "prebind: ", "the message names Prebind")
	assert.Contains(t, status.Message, says)
}

// TestHandler_BadInput checks that a request that is not an AdmissionReview gets an HTTP error and does not reach the engine.
func TestHandler_BadInput(t *testing.T) {
	good := read(t, "allowed.request.json")
	replace := func(old, with string) []byte {
		require.Contains(t, string(good), old)
		return bytes.Replace(good, []byte(old), []byte(with), 1)
	}
	compact := func(request string) []byte { return []byte(reviewPrefix + request + "}}") }
	const notReview = "not an AdmissionReview of admission.k8s.io/v1 with a request that has a uid"
	cases := map[string]struct {
		reason string
		body   []byte
		change []func(r *http.Request)
		says   string
	}{
		"LongUID":      {reason: "the answer repeats the UID", body: replace(`"uid": "`, `"uid": "`+strings.Repeat("7", maxUID)), says: notReview},
		"Malformed":    {reason: "the body is not JSON", body: []byte("hello"), says: "not a valid AdmissionReview"},
		"Trailing":     {reason: "the body has two JSON values", body: append(bytes.Clone(good), good...), says: "not a valid AdmissionReview"},
		"NoRequest":    {reason: "the review has no request", body: []byte(`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1"}`), says: notReview},
		"NoUID":        {reason: "the API server needs the UID in the answer", body: replace(`"uid": "705ab4f5-6393-11e8-b7cc-42010a800002"`, `"uid": ""`), says: notReview},
		"WrongVersion": {reason: "the webhook configuration lists only v1", body: replace("admission.k8s.io/v1", "admission.k8s.io/v1beta1"), says: notReview},
		"OtherCase":    {reason: "field names are case-sensitive, as in the API server", body: replace(`"request"`, `"Request"`), says: notReview},
		"TooDeep":      {reason: "the depth of JSON is limited", body: compact(`"uid":"1","unknown":` + strings.Repeat("[", 10_001)), says: "max depth"},
		"CompactType":  {reason: "the message names the field", body: compact(`"uid":"1","dryRun":"no"`), says: `within "/request/dryRun"`},
		"SecondKind":   {reason: "the last kind counts", body: []byte(reviewPrefix + `"uid":"1"},"kind":"` + strings.Repeat("<", 1<<20) + `"}`), says: notReview},
		"BrokenBody": {reason: "reading the body fails", change: []func(r *http.Request){func(r *http.Request) {
			r.Body = io.NopCloser(iotest.ErrReader(errors.New("broken")))
		}}, says: "reading the body: broken"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			h := handlerOf(t, func(context.Context, binder.Request) binder.Decision {
				assert.Fail(t, "the engine is called")
				return binder.Decision{}
			})
			w := serve(t, h, tc.body, tc.change...)
			assert.Equal(t, http.StatusBadRequest, w.Code, tc.reason)
			checkStatus(t, w, http.StatusBadRequest, tc.says)
		})
	}
}

// TestHandler_BodyTooLarge checks that a review that is too large is rejected. With failurePolicy Ignore, the API server would bind the pod
// after an HTTP error.
func TestHandler_BodyTooLarge(t *testing.T) {
	h := handlerOf(t, func(context.Context, binder.Request) binder.Decision {
		assert.Fail(t, "the engine is called")
		return binder.Decision{}
	})
	body := func(begin string) []byte { return []byte(begin + strings.Repeat("<", maxBody)) }
	limit := func(r *http.Request) { r.Body = http.MaxBytesReader(nil, r.Body, maxBody) }

	const pods = `"namespace":"shop","name":"web-0","operation":"CREATE","object":{"metadata":{"annotations":{"a":"`
	of := func(kind, resource string) []byte {
		return body(reviewPrefix + `"uid":"1","kind":{"version":"v1","kind":"` + kind + `"},"resource":{"version":"v1","resource":"pods"},"subResource":"` + resource + `",` + pods)
	}
	w := serve(t, h, of("Pod", "status"), limit)
	assert.Contains(t, w.Body.String(), `"allowed":true`, "a wrong rule of the webhook configuration stops no other request")
	w = serve(t, h, of("Binding", "binding"), limit)
	assert.Equal(t, http.StatusOK, w.Code)
	var review admissionv1.AdmissionReview
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &review))
	assert.Equal(t, types.UID("1"), review.Response.UID)
	assert.False(t, review.Response.Allowed)
	assert.Equal(t, int32(http.StatusUnprocessableEntity), review.Response.Result.Code)
	assert.Equal(t, "binder: Binding shop/web-0: its AdmissionReview is too large: the body is larger than 2097152 bytes; post a smaller Binding",
		review.Response.Result.Message)

	w = serve(t, h, body("hello"), limit)
	checkStatus(t, w, http.StatusRequestEntityTooLarge, "larger than 2097152 bytes")
}

// reviewPrefix is the beginning of every review that the API server sends.
const reviewPrefix = `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{`

// TestHandler_SameKeys checks that a client cannot make reviews invalid: two keys of a Binding in protobuf that are not UTF-8 can be the same
// in the review. With failurePolicy Ignore, the API server would bind such a pod without Prebind.
func TestHandler_SameKeys(t *testing.T) {
	var got binder.Request
	h := handlerOf(t, func(_ context.Context, r binder.Request) binder.Decision {
		got = r
		return binder.Decision{PassThrough: true}
	})
	sent := &corev1.Binding{}
	encoded, err := (&corev1.Binding{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"a\xfe": "1", "a\xff": "1"}}}).Marshal()
	require.NoError(t, err)
	require.NoError(t, sent.Unmarshal(encoded), "protobuf does not require UTF-8")
	review := &admissionv1.AdmissionReview{}
	require.NoError(t, json.Unmarshal(read(t, "allowed.request.json"), review))
	review.Request.Object = runtime.RawExtension{Object: sent}
	body, err := json.Marshal(review)
	require.NoError(t, err)
	w := serve(t, h, body)
	assert.Equal(t, http.StatusOK, w.Code, w.Body)
	assert.Equal(t, map[string]string{"a\ufffd": "1"}, got.Binding.Annotations)
}

// TestBudget checks that the context of the engine ends before the API server's timeout.
func TestBudget(t *testing.T) {
	cases := map[string]struct {
		reason string
		query  string
		want   time.Duration
	}{
		"Default":   {reason: "the shipped timeout", query: "timeout=4s", want: 3 * time.Second},
		"OneSecond": {reason: "a margin of a second would leave no time", query: "timeout=1s", want: 500 * time.Millisecond},
		"None":      {reason: "the API server's default", want: 9 * time.Second},
		"Zero":      {reason: "zero is not a valid timeout", query: "timeout=0s", want: 9 * time.Second},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := handlerOf(t, func(ctx context.Context, _ binder.Request) binder.Decision {
					deadline, ok := ctx.Deadline()
					assert.True(t, ok)
					assert.Equal(t, tc.want, time.Until(deadline), tc.reason)
					return binder.Decision{}
				})
				serve(t, h, read(t, "allowed.request.json"), func(r *http.Request) { r.URL.RawQuery = tc.query })
			})
		})
	}
}

// FuzzPatch applies the patch like the API server. The patch sets the keys of the decision and changes nothing else.
func FuzzPatch(f *testing.F) {
	paths, err := filepath.Glob(filepath.Join("testdata", "*.request.json"))
	require.NoError(f, err)
	require.NotEmpty(f, paths)
	for _, path := range paths {
		body, err := os.ReadFile(path)
		require.NoError(f, err)
		var review admissionv1.AdmissionReview
		require.NoError(f, json.Unmarshal(body, &review))
		f.Add(review.Request.Object.Raw, "topology.prebind.dev/zone", "z1", "example.com/a~b", "0a1b2c3d")
	}
	f.Add([]byte(`{"metadata":{"annotations":{"":"","a/b":"1"}},"other":[1.5]}`), "a/b", "1", "", "")
	f.Add([]byte(`{"metadata":{}}`), "~1", "<&>", "~0/", "")
	f.Add([]byte(`{"metadata":null}`), "a", "", "a", "1")
	for _, value := range []string{`"`, `\`, "\n\x00", "\x7f", "ä\u2028", "<&>"} {
		f.Add([]byte(`{"metadata":{"annotations":{}}}`), "a", value, value, "1")
	}
	f.Fuzz(func(t *testing.T, raw []byte, key, value, second, uid string) {
		var object map[string]any
		if json.Unmarshal(raw, &object) != nil || object == nil {
			return // The API server sends only objects.
		}
		for _, s := range []string{key, value, second, uid} {
			if !utf8.ValidString(s) {
				return // The engine validates additions.
			}
		}
		// The API server sends no duplicate keys.
		raw, err := json.Marshal(object)
		require.NoError(t, err)
		of := func(raw []byte) *request { return &request{Name: "web", Namespace: "shop", Object: raw} }
		b, bad := parse(of(raw))
		if bad != nil {
			return // Not a Binding.
		}
		if _, ok := object["metadata"].(map[string]any); !ok {
			return // The Binding of an API server has metadata.
		}
		d := binder.Decision{Annotations: map[string]string{key: value, second: value + "!"}, Labels: map[string]string{second: value}, UID: types.UID(uid)}

		want := b.Binding.DeepCopy()
		if want.Annotations == nil {
			want.Annotations = map[string]string{}
		}
		maps.Copy(want.Annotations, d.Annotations)
		if want.Labels == nil {
			want.Labels = map[string]string{}
		}
		maps.Copy(want.Labels, d.Labels)
		if uid != "" {
			want.UID = d.UID
		}
		patched := raw
		if patch := patchFor(b.Binding, d); patch != nil {
			encoded, err := json.Marshal(patch)
			require.NoError(t, err)
			patched, err = jsonpatch.Apply(raw, types.JSONPatchType, encoded)
			require.NoError(t, err, "%s of %s", encoded, raw)
		}
		got := &corev1.Binding{}
		require.NoError(t, apijson.Unmarshal(patched, got), "%s", patched)
		m := got.ObjectMeta // parse drops the other fields.
		got.TypeMeta, got.ObjectMeta = want.TypeMeta, metav1.ObjectMeta{
			Name: m.Name, Namespace: m.Namespace, UID: m.UID, ResourceVersion: m.ResourceVersion, Annotations: m.Annotations, Labels: m.Labels,
		}
		assert.Equal(t, want, got)

		var after map[string]any
		require.NoError(t, json.Unmarshal(patched, &after))
		for _, o := range []map[string]any{object, after} {
			delete(o, "metadata")
		}
		assert.Equal(t, object, after, "only metadata changes")

		again, bad := parse(of(patched))
		require.Nil(t, bad)
		d.UID = ""
		assert.Nil(t, patchFor(again.Binding, d), "a second patch is empty")
	})
}
