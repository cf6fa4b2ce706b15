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
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prebind/prebind/binder"
)

// checkStatus checks that the body is a Status that the API server can show.
func checkStatus(t *testing.T, w *httptest.ResponseRecorder, code int32, says string) {
	t.Helper()
	var status metav1.Status
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &status), "the body is JSON: %s", w.Body)
	assert.Equal(t, "application/json", w.Header().Get("Content-Type"))
	assert.Equal(t, metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, status.TypeMeta)
	assert.Equal(t, metav1.StatusFailure, status.Status)
	assert.Equal(t, code, status.Code)
	assert.NotEmpty(t, status.Reason)
	assert.Contains(t, status.Message, "prebind: ", "it says who speaks")
	assert.Contains(t, status.Message, says)
}

// TestBadInput: a request that is not an AdmissionReview gets an HTTP error, and does not reach the engine.
func TestBadInput(t *testing.T) {
	good := read(t, "allowed.request.json")
	replace := func(old, with string) []byte {
		require.Contains(t, string(good), old)
		return bytes.Replace(good, []byte(old), []byte(with), 1)
	}
	// compact begins as the API server writes it, so that only the library decodes it.
	compact := func(request string) []byte {
		return []byte(reviewPrefix + request + "}}")
	}
	header := func(contentType string) func(r *http.Request) {
		return func(r *http.Request) { r.Header.Set("Content-Type", contentType) }
	}
	cases := map[string]struct {
		reason string
		body   []byte
		change func(r *http.Request)
		code   int
		says   string
	}{
		"LongUID":        {reason: "the answer would repeat it", body: replace(`"uid": "`, `"uid": "`+strings.Repeat("7", maxUID)), code: http.StatusBadRequest, says: "longer than 128 bytes"},
		"LongKind":       {reason: "the answer does not repeat it", body: replace(`"AdmissionReview"`, `"`+strings.Repeat("<", 1<<20)+`"`), code: http.StatusBadRequest, says: "…"},
		"Malformed":      {reason: "no JSON", body: []byte("hello"), code: http.StatusBadRequest, says: "not a valid AdmissionReview"},
		"Truncated":      {reason: "half a JSON", body: good[:len(good)/2], code: http.StatusBadRequest, says: "not a valid AdmissionReview"},
		"Trailing":       {reason: "more than one JSON", body: append(bytes.Clone(good), good...), code: http.StatusBadRequest, says: "not a valid AdmissionReview"},
		"Empty":          {reason: "nothing", body: nil, code: http.StatusBadRequest, says: "not a valid AdmissionReview"},
		"Array":          {reason: "JSON, but no object", body: []byte("[]"), code: http.StatusBadRequest, says: "not a valid AdmissionReview"},
		"Null":           {reason: "JSON, but no object", body: []byte("null"), code: http.StatusBadRequest, says: "not an AdmissionReview"},
		"EmptyObject":    {reason: "an object of no kind", body: []byte("{}"), code: http.StatusBadRequest, says: "not an AdmissionReview"},
		"WrongType":      {reason: "a field of another type", body: replace(`"dryRun": false`, `"dryRun": "no"`), code: http.StatusBadRequest, says: "not a valid AdmissionReview"},
		"NoRequest":      {reason: "nothing to answer", body: []byte(`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1"}`), code: http.StatusBadRequest, says: "no request"},
		"OnlyResponse":   {reason: "an answer is no question", body: []byte(`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","response":{"uid":"1","allowed":true}}`), code: http.StatusBadRequest, says: "no request"},
		"NoUID":          {reason: "an answer without UID is none", body: replace(`"uid": "705ab4f5-6393-11e8-b7cc-42010a800002"`, `"uid": ""`), code: http.StatusBadRequest, says: "no uid"},
		"WrongKind":      {reason: "another kind", body: replace("AdmissionReview", "ConversionReview"), code: http.StatusBadRequest, says: "ConversionReview"},
		"WrongVersion":   {reason: "only v1 is registered", body: replace("admission.k8s.io/v1", "admission.k8s.io/v1beta1"), code: http.StatusBadRequest, says: "v1beta1"},
		"OtherCase":      {reason: "names are compared exactly, as the API server does", body: replace(`"request"`, `"Request"`), code: http.StatusBadRequest, says: "no request"},
		"TooLarge":       {reason: "a body is bounded", body: []byte(`"` + strings.Repeat("x", maxBody) + `"`), code: http.StatusRequestEntityTooLarge, says: "larger"},
		"TooDeep":        {reason: "nor is a stack without end", body: nested(10_001), code: http.StatusBadRequest, says: "max depth"},
		"DeepInObject":   {reason: "nor in the object, which is read later", body: replace(`"object": {`, `"object": {"x":`+string(nested(10_001))+`,`), code: http.StatusBadRequest, says: "max depth"},
		"OpenForEver":    {reason: "nor one that is never closed", body: bytes.Repeat([]byte(`{"a":[`), maxBody/6), code: http.StatusBadRequest, says: "max depth"},
		"CompactNoUID":   {reason: "also where the kind is not looked at", body: compact(`"operation":"CREATE"`), code: http.StatusBadRequest, says: "no uid"},
		"CompactLongUID": {reason: "the answer would repeat it", body: compact(`"uid":"` + strings.Repeat("7", maxUID+1) + `"`), code: http.StatusBadRequest, says: "longer than 128 bytes"},
		"CompactBroken":  {reason: "the library finds it", body: compact(`"uid":`), code: http.StatusBadRequest, says: "not a valid AdmissionReview: "},
		"CompactType":    {reason: "the library finds it", body: compact(`"uid":"1","dryRun":"no"`), code: http.StatusBadRequest, says: "dryRun of type bool"},
		"SecondKind":     {reason: "the library repeats the last one", change: secondKind, code: http.StatusBadRequest, says: "…"},
		"Get":            {reason: "a review is posted", body: good, change: func(r *http.Request) { r.Method = http.MethodGet }, code: http.StatusMethodNotAllowed, says: "GET"},
		"NoContentType":  {reason: "the API server always sends one", body: good, change: header(""), code: http.StatusUnsupportedMediaType, says: "application/json"},
		"OtherType":      {reason: "only JSON is read", body: good, change: header("application/yaml"), code: http.StatusUnsupportedMediaType, says: "application/yaml"},
		"BadContentType": {reason: "a type that cannot be read", body: good, change: header("///"), code: http.StatusUnsupportedMediaType, says: "///"},
		"BrokenBody":     {reason: "the connection broke", change: func(r *http.Request) { r.Body = io.NopCloser(broken{}) }, code: http.StatusBadRequest, says: "reading the body: broken"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			h := handlerOf(t, func(context.Context, binder.Request) binder.Decision {
				assert.Fail(t, "the engine is not asked")
				return binder.Decision{}
			})
			change := tc.change
			if change == nil {
				change = func(*http.Request) {}
			}
			w := serve(t, h, tc.body, change)
			assert.Equal(t, tc.code, w.Code, tc.reason)
			checkStatus(t, w, int32(tc.code), tc.says)
			assert.Equal(t, tc.code == http.StatusMethodNotAllowed, w.Header().Get("Allow") == http.MethodPost)
		})
	}
}

// secondKind gives a large review a second kind that is even larger.
func secondKind(r *http.Request) {
	body := reviewPrefix + `"uid":"1"},"kind":"` + strings.Repeat("<", 1<<20) + `"}`
	r.Body, r.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
}

// nested is an array in an array, and so on.
func nested(depth int) []byte {
	return append(bytes.Repeat([]byte("["), depth), bytes.Repeat([]byte("]"), depth)...)
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errors.New("broken") }

func TestContentTypeParameters(t *testing.T) {
	h := handlerOf(t, func(context.Context, binder.Request) binder.Decision { return binder.Decision{} })
	w := serve(t, h, read(t, "allowed.request.json"), func(r *http.Request) {
		r.Header.Set("Content-Type", "Application/JSON; charset=utf-8")
	})
	assert.Equal(t, http.StatusOK, w.Code)
}

func TestBudget(t *testing.T) {
	cases := map[string]struct {
		reason string
		query  string
		want   time.Duration
	}{
		"Default":   {reason: "the shipped timeout", query: "timeout=10s", want: 9 * time.Second},
		"Longest":   {reason: "the longest that a webhook can have", query: "timeout=30s", want: 29 * time.Second},
		"TwoSecond": {reason: "the margin is half of it", query: "timeout=2s", want: time.Second},
		"OneSecond": {reason: "a margin of a second would leave nothing", query: "timeout=1s", want: 500 * time.Millisecond},
		"Fraction":  {reason: "whatever is left is halved", query: "timeout=100ms", want: 50 * time.Millisecond},
		"None":      {reason: "the API server's default", want: 9 * time.Second},
		"Empty":     {reason: "the API server's default", query: "timeout=", want: 9 * time.Second},
		"Garbage":   {reason: "the API server's default", query: "timeout=soon", want: 9 * time.Second},
		"NoUnit":    {reason: "a duration has a unit", query: "timeout=3", want: 9 * time.Second},
		"Zero":      {reason: "no time at all is no time", query: "timeout=0s", want: 9 * time.Second},
		"Negative":  {reason: "nor is less", query: "timeout=-5s", want: 9 * time.Second},
		"Among":     {reason: "it need not be alone", query: "a=b&timeout=4s", want: 3 * time.Second},
		"First":     {reason: "nor the last", query: "timeout=4s&a=b", want: 3 * time.Second},
		"Escaped":   {reason: "a query may be escaped", query: "timeout=%34s", want: 3 * time.Second},
		"BadQuery":  {reason: "what cannot be read is not there", query: "timeout=%zz", want: 9 * time.Second},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, Path, nil)
			r.URL.RawQuery = tc.query
			assert.Equal(t, tc.want, budget(r), tc.reason)
		})
	}
}

func TestReadAll(t *testing.T) {
	long := strings.Repeat("x", 2*ordinaryBody)
	cases := map[string]struct {
		reason string
		body   string
		length int64
		broken bool
	}{
		"Known":   {reason: "an ordinary review", body: "{}", length: 2},
		"Empty":   {reason: "nothing is no review, but that is not said here"},
		"Unknown": {reason: "chunked bodies have no length", body: "{}", length: -1},
		"Long":    {reason: "no room is made because of a promise", body: long, length: int64(len(long))},
		"Short":   {reason: "a body that breaks off is not taken for one that ends", body: "{", length: 2, broken: true},
		"Broken":  {reason: "nor is a long one", body: long, length: int64(len(long)), broken: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var body io.Reader = strings.NewReader(tc.body)
			if tc.broken {
				body = io.MultiReader(body, iotest.ErrReader(io.ErrUnexpectedEOF))
			}
			got, err := readAll(body, tc.length)
			if tc.broken {
				require.ErrorIs(t, err, io.ErrUnexpectedEOF, tc.reason)
				return
			}
			require.NoError(t, err, tc.reason)
			assert.Equal(t, tc.body, string(got), tc.reason)
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
		"None":       {reason: "nothing to tell"},
		"Some":       {reason: "all are told", all: []string{"a", "b"}, want: 2},
		"JustFits":   {reason: "the limit counts runes, not bytes", all: []string{long(maxWarningRunes)}, want: 1},
		"TooLong":    {reason: "half a warning is none", all: []string{long(maxWarningRunes + 1)}},
		"OneTooMany": {reason: "as many whole ones as fit", all: []string{long(2000), long(2000), long(97)}, want: 2},
		"LastFits":   {reason: "as many whole ones as fit", all: []string{long(2000), long(2000), long(96)}, want: 3},
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
