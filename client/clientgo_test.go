// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build go1.25

package client_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	prebind "github.com/prebind/prebind/client"
)

// apiServer is a transport that returns the same response to every request, and counts the requests.
type apiServer struct {
	code       int
	retryAfter string
	media      string
	body       []byte
	// err is returned instead of a response.
	err      error
	requests int
	// url is that of the last request.
	url string
}

func (s *apiServer) RoundTrip(r *http.Request) (*http.Response, error) {
	s.requests++
	s.url = r.URL.String()
	if r.Body != nil {
		if err := r.Body.Close(); err != nil {
			return nil, err
		}
	}
	if s.err != nil {
		return nil, s.err
	}
	header := http.Header{"Content-Type": {s.media}}
	if s.retryAfter != "" {
		header.Set("Retry-After", s.retryAfter)
	}
	return &http.Response{StatusCode: s.code, Header: header, Body: io.NopCloser(bytes.NewReader(s.body)), Request: r}, nil
}

func statusServer(t *testing.T, s metav1.Status) *apiServer {
	t.Helper()
	body, err := json.Marshal(s)
	require.NoError(t, err)
	server := &apiServer{code: int(s.Code), media: "application/json", body: body}
	if s.Details != nil && s.Details.RetryAfterSeconds > 0 {
		server.retryAfter = strconv.Itoa(int(s.Details.RetryAfterSeconds))
	}
	return server
}

// deniedServer returns the API server for a denial in Prebind's golden tests.
func deniedServer(t *testing.T, name string) *apiServer {
	t.Helper()
	denial, ok := prebind.Denials(t)[name]
	require.True(t, ok)
	return statusServer(t, denial.Status)
}

func (s *apiServer) client(t *testing.T) *typedcorev1.CoreV1Client {
	t.Helper()
	client, err := typedcorev1.NewForConfig(&rest.Config{Host: "http://api.example.com", Transport: s, QPS: -1})
	require.NoError(t, err)
	return client
}

// TestBind_ClientGo checks the reaction of the example to errors of the real client-go.
func TestBind_ClientGo(t *testing.T) {
	denied := func(name string) *apiServer { return deniedServer(t, name) }
	says := func(code int32, reason metav1.StatusReason, message string) *apiServer {
		return statusServer(t, metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: code, Reason: reason, Message: message,
		})
	}
	failed := func(code int32, reason metav1.StatusReason) *apiServer { return says(code, reason, "no") }
	for name, tc := range map[string]struct {
		reason   string
		server   *apiServer
		want     Next
		delay    time.Duration
		requests int
	}{
		"Allowed":  {reason: "the pod is bound", server: &apiServer{code: http.StatusCreated, media: "application/json", body: []byte(`{"kind":"Status","apiVersion":"v1","status":"Success"}`)}, want: Bound, requests: 1},
		"Waiting":  {reason: "client-go repeats the Binding ten times", server: denied("device-locked"), want: Repeat, delay: time.Second, requests: 11},
		"Refused":  {reason: "the node has no free device", server: denied("device-taken"), want: Avoid, requests: 1},
		"Stale":    {reason: "the decision was about an earlier version of the pod", server: denied("stale-version"), want: Forget, requests: 1},
		"Invalid":  {reason: "the same Binding never succeeds", server: denied("device-invalid"), want: Report, requests: 1},
		"Internal": {reason: "another call can succeed", server: denied("device-record-unreadable"), want: Reschedule, requests: 1},
		"Throttled": {
			reason: "priority and fairness rejects a request with a text, and Prebind has not seen it",
			server: &apiServer{code: http.StatusTooManyRequests, media: "text/plain; charset=utf-8", retryAfter: "2", body: []byte("Too many requests, please try again later.\n")},
			want:   Repeat, delay: 2 * time.Second, requests: 11,
		},
		"AlreadyBound": {reason: "an earlier call has bound the pod", server: failed(http.StatusConflict, metav1.StatusReasonConflict), want: Forget, requests: 1},
		"Gone":         {reason: "the pod is deleted", server: failed(http.StatusNotFound, metav1.StatusReasonNotFound), want: Forget, requests: 1},
		"TimedOut":     {reason: "the outcome is unknown", server: failed(http.StatusGatewayTimeout, metav1.StatusReasonTimeout), want: Repeat, delay: time.Second, requests: 1},
		"Disconnected": {reason: "the request can have reached the API server", server: &apiServer{err: errors.New("connection lost")}, want: Repeat, delay: time.Second, requests: 1},
		"NotCalled":    {reason: "no replica of Prebind answers", server: says(http.StatusInternalServerError, metav1.StatusReasonInternalError, `Internal error occurred: failed calling webhook "pods-binding.prebind.dev": EOF`), want: Reschedule, requests: 1},
		"OtherDenial":  {reason: "another webhook failed", server: says(http.StatusInternalServerError, metav1.StatusReasonUnknown, `admission webhook "x.example.com" denied the request: no`), want: Reschedule, requests: 1},
		"NoPermission": {reason: "somebody has to grant it", server: says(http.StatusForbidden, metav1.StatusReasonForbidden, `pods "web" is forbidden: User "s" cannot create resource "pods/binding" in API group "" in the namespace "shop"`), want: Report, requests: 1},
		"Rejected":     {reason: "another webhook rejects the Binding", server: says(http.StatusForbidden, metav1.StatusReasonForbidden, `admission webhook "x.example.com" denied the request: no`), want: Reschedule, requests: 1},
		"Electing":     {reason: "etcd can have committed the write", server: says(http.StatusInternalServerError, metav1.StatusReasonUnknown, "etcdserver: leader changed"), want: Repeat, delay: time.Second, requests: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "pod-1"}}
				got, delay, err := Bind(t.Context(), tc.server.client(t), pod, "node-a", prebind.Request{NodeLock: true})
				assert.Equal(t, tc.want, got, "%s: %v", tc.reason, err)
				assert.Equal(t, tc.want == Bound, err == nil)
				assert.Equal(t, tc.delay, delay)
				assert.Equal(t, tc.requests, tc.server.requests)
			})
		})
	}
}

func TestBind_InvalidRequest(t *testing.T) {
	got, _, err := Bind(t.Context(), nil, &corev1.Pod{}, "node-a", prebind.Request{Timeout: -1})
	assert.Equal(t, Report, got, "the request never succeeds, so it is not posted")
	assert.Error(t, err)
}

// TestPostOnce checks that a call without repeats limits the hold, and that its error has Prebind's answer.
func TestPostOnce(t *testing.T) {
	server := deniedServer(t, "device-locked")
	binding := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}}
	err := postOnce(t.Context(), server.client(t).RESTClient(), binding)
	assert.Equal(t, prebind.Waiting, prebind.Classify(err).Kind, "%v", err)
	assert.Equal(t, 1, server.requests)
	assert.Equal(t, "http://api.example.com/api/v1/namespaces/shop/pods/web/binding?timeout=3s", server.url)
}
