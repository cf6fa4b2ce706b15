// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package apiclient

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
)

// mute answers nothing but the beginning of a list or a watch, and tells when a client
// has given up.
func mute(t *testing.T) (address string, givenUp <-chan string) {
	t.Helper()
	told := make(chan string, 10)
	// Nothing is made of errors here and below: a client that has given up is what is wanted.
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if r.Method == http.MethodGet {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"type":"BOOKMARK","object":{"apiVersion":"v1","kind":"Pod","metadata":{"resourceVersion":"1"}}}`)
			_ = http.NewResponseController(w).Flush()
		}
		<-r.Context().Done()
		told <- r.Method
	}))
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections)
	return server.URL, told
}

// TestImpatient: a request without an answer, or without the end of one, is given up,
// and a watch is not.
func TestImpatient(t *testing.T) {
	address, givenUp := mute(t)
	config := &rest.Config{Host: address}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return impatient{next: next, takes: 100 * time.Millisecond}
	})
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	pods := client.CoreV1().Pods("default")

	watching, err := pods.Watch(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	assert.Equal(t, "BOOKMARK", string((<-watching.ResultChan()).Type))

	err = pods.Delete(t.Context(), "web", metav1.DeleteOptions{})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "no answer from the API server within 100ms")
	assert.Equal(t, http.MethodDelete, <-givenUp)
	_, err = pods.List(t.Context(), metav1.ListOptions{})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	assert.Equal(t, http.MethodGet, <-givenUp)

	own, cancel := context.WithCancel(t.Context())
	cancel()
	err = pods.Delete(own, "web", metav1.DeleteOptions{})
	require.ErrorIs(t, err, context.Canceled)
	assert.NotContains(t, err.Error(), "no answer", "it was the caller who gave up")

	select {
	case event, open := <-watching.ResultChan():
		t.Errorf("the watch should go on as it was: %v, open: %v", event, open)
	default:
	}
	watching.Stop()
	assert.Equal(t, http.MethodGet, <-givenUp)
}

// TestPrepare: every client gives up at some time, and shows its answers.
func TestPrepare(t *testing.T) {
	config := &rest.Config{Host: "http://127.0.0.1:1"}
	health := NewHealth(clock.RealClock{})
	prepare(config, "agent", health)
	assert.Zero(t, config.Timeout, "it would end watches")
	assert.Error(t, contact(config))
	assert.Error(t, health.failure, "health should see it")
	transport, err := rest.TransportFor(config)
	require.NoError(t, err)
	for {
		if i, ok := transport.(impatient); ok {
			assert.Equal(t, answerTakes, i.takes)
			return
		}
		wrapper, ok := transport.(interface{ WrappedRoundTripper() http.RoundTripper })
		require.True(t, ok, "%T", transport)
		transport = wrapper.WrappedRoundTripper()
	}
}
