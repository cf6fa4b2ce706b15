// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/prebind/prebind/binder"
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
	cases := map[string]struct {
		reason string
		body   []byte
		change func(r *http.Request)
		says   string
	}{
		"LongUID":       {reason: "the answer repeats the UID", body: replace(`"uid": "`, `"uid": "`+strings.Repeat("7", maxUID)), says: "not an AdmissionReview of admission.k8s.io/v1 with a request that has a uid"},
		"LongKind":      {reason: "a message does not repeat the kind", body: replace(`"AdmissionReview"`, `"`+strings.Repeat("<", 1<<20)+`"`), says: "not an AdmissionReview of admission.k8s.io/v1 with a request that has a uid"},
		"Malformed":     {reason: "the body is not JSON", body: []byte("hello"), says: "not a valid AdmissionReview"},
		"Trailing":      {reason: "the body has two JSON values", body: append(bytes.Clone(good), good...), says: "not a valid AdmissionReview"},
		"Empty":         {reason: "the body is empty", body: nil, says: "not a valid AdmissionReview"},
		"Null":          {reason: "null is not an object", body: []byte("null"), says: "not an AdmissionReview of admission.k8s.io/v1 with a request that has a uid"},
		"WrongType":     {reason: "a field has the wrong type", body: replace(`"dryRun": false`, `"dryRun": "no"`), says: "not a valid AdmissionReview"},
		"NoRequest":     {reason: "the review has no request", body: []byte(`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1"}`), says: "not an AdmissionReview of admission.k8s.io/v1 with a request that has a uid"},
		"NoUID":         {reason: "the API server needs the UID in the answer", body: replace(`"uid": "705ab4f5-6393-11e8-b7cc-42010a800002"`, `"uid": ""`), says: "not an AdmissionReview of admission.k8s.io/v1 with a request that has a uid"},
		"WrongKind":     {reason: "the kind is wrong", body: replace("AdmissionReview", "ConversionReview"), says: "not an AdmissionReview of admission.k8s.io/v1 with a request that has a uid"},
		"WrongVersion":  {reason: "the webhook configuration lists only v1", body: replace("admission.k8s.io/v1", "admission.k8s.io/v1beta1"), says: "not an AdmissionReview of admission.k8s.io/v1 with a request that has a uid"},
		"OtherCase":     {reason: "field names are case-sensitive, as in the API server", body: replace(`"request"`, `"Request"`), says: "not an AdmissionReview of admission.k8s.io/v1 with a request that has a uid"},
		"TooDeep":       {reason: "the depth of JSON is limited", body: compact(`"uid":"1","unknown":` + nested(10_001)), says: "max depth"},
		"CompactBroken": {reason: "a value is missing", body: compact(`"uid":`), says: "not a valid AdmissionReview: "},
		"CompactType":   {reason: "the message names the field", body: compact(`"uid":"1","dryRun":"no"`), says: `within "/request/dryRun"`},
		"SecondKind":    {reason: "the last kind counts", change: secondKind, says: "not an AdmissionReview of admission.k8s.io/v1 with a request that has a uid"},
		"BrokenBody":    {reason: "reading the body fails", change: func(r *http.Request) { r.Body = io.NopCloser(broken{}) }, says: "reading the body: broken"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			h := handlerOf(t, func(context.Context, binder.Request) binder.Decision {
				assert.Fail(t, "the engine is called")
				return binder.Decision{}
			})
			change := tc.change
			if change == nil {
				change = func(*http.Request) {}
			}
			w := serve(t, h, tc.body, change)
			assert.Equal(t, http.StatusBadRequest, w.Code, tc.reason)
			checkStatus(t, w, http.StatusBadRequest, tc.says)
		})
	}
}

// reviewPrefix is the beginning of every review that the API server sends.
const reviewPrefix = `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{`

// secondKind replaces the body by a review with a second, large kind.
func secondKind(r *http.Request) {
	body := reviewPrefix + `"uid":"1"},"kind":"` + strings.Repeat("<", 1<<20) + `"}`
	r.Body, r.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
}

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
	w := serve(t, h, body, func(*http.Request) {})
	assert.Equal(t, http.StatusOK, w.Code, w.Body)
	assert.Equal(t, map[string]string{"a\ufffd": "1"}, got.Binding.Annotations)
}

// nested returns nested arrays.
func nested(depth int) string { return strings.Repeat("[", depth) + strings.Repeat("]", depth) }

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errors.New("broken") }

func TestBudget(t *testing.T) {
	cases := map[string]struct {
		reason string
		query  string
		want   time.Duration
	}{
		"Default":   {reason: "the shipped timeout", query: "timeout=10s", want: 9 * time.Second},
		"TwoSecond": {reason: "the margin is at most half of the timeout", query: "timeout=2s", want: time.Second},
		"OneSecond": {reason: "a margin of a second would leave no time", query: "timeout=1s", want: 500 * time.Millisecond},
		"None":      {reason: "the API server's default", want: 9 * time.Second},
		"Garbage":   {reason: "the API server's default", query: "timeout=soon", want: 9 * time.Second},
		"Zero":      {reason: "zero is not a valid timeout", query: "timeout=0s", want: 9 * time.Second},
		"Among":     {reason: "the query can have other parameters before it", query: "a=b&timeout=4s", want: 3 * time.Second},
		"Escaped":   {reason: "a query may be escaped", query: "timeout=%34s", want: 3 * time.Second},
		"BadQuery":  {reason: "an invalid query is ignored", query: "timeout=%zz", want: 9 * time.Second},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, Path, nil)
			r.URL.RawQuery = tc.query
			assert.Equal(t, tc.want, budget(r), tc.reason)
		})
	}
}

func TestWarnings(t *testing.T) {
	long := func(runes int) string { return strings.Repeat("ä", runes-len("prebind: ")) }
	cases := map[string]struct {
		reason string
		all    []string
		want   int
	}{
		"Some":       {reason: "all warnings fit", all: []string{"a", "b"}, want: 2},
		"JustFits":   {reason: "the limit counts runes, not bytes", all: []string{long(maxWarningRunes)}, want: 1},
		"TooLong":    {reason: "a warning is not truncated", all: []string{long(maxWarningRunes + 1)}},
		"OneTooMany": {reason: "the last warning does not fit", all: []string{long(2000), long(2000), long(97)}, want: 2},
		"LastFits":   {reason: "the last warning just fits", all: []string{long(2000), long(2000), long(96)}, want: 3},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got := warnings(tc.all)
			require.Len(t, got, tc.want, tc.reason)
			for i, w := range got {
				assert.Equal(t, "prebind: "+tc.all[i], w)
			}
		})
	}
}
