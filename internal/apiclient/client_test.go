// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package apiclient

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// mute is a server that sends only the beginning of a list or a watch. The channel receives
// the method of each request that the client cancels.
func mute(t *testing.T) (address string, givenUp <-chan string) {
	t.Helper()
	canceled := make(chan string, 10)
	// Errors are expected here and below: the client cancels its requests.
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if r.Method == http.MethodGet {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"type":"BOOKMARK","object":{"apiVersion":"v1","kind":"Pod","metadata":{"resourceVersion":"1"}}}`)
			_ = http.NewResponseController(w).Flush()
		}
		<-r.Context().Done()
		canceled <- r.Method
	}))
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections)
	return server.URL, canceled
}

// TestTransport_CancelsRequests checks that a request without a complete answer is canceled, and
// that a watch is not.
func TestTransport_CancelsRequests(t *testing.T) {
	address, givenUp := mute(t)
	config := &rest.Config{Host: address}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return transport{next: next, takes: 100 * time.Millisecond}
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
	assert.NotContains(t, err.Error(), "no answer", "the caller canceled the request")

	select {
	case event, open := <-watching.ResultChan():
		t.Errorf("the watch should continue: %v, open: %v", event, open)
	default:
	}
	watching.Stop()
	assert.Equal(t, http.MethodGet, <-givenUp)
}

// TestPrepare checks that every request has a time limit.
func TestPrepare(t *testing.T) {
	config := &rest.Config{Host: "http://127.0.0.1:1"}
	require.NoError(t, prepare(config, "agent"))
	assert.Zero(t, config.Timeout, "a timeout of the client would end watches")
	assert.Equal(t, "10", os.Getenv("HTTP2_READ_IDLE_TIMEOUT_SECONDS"), "a frozen API server must not cost the lease")
	sent, err := rest.TransportFor(config)
	require.NoError(t, err)
	for {
		if i, ok := sent.(transport); ok {
			assert.Equal(t, answerTakes, i.takes)
			return
		}
		wrapper, ok := sent.(interface{ WrappedRoundTripper() http.RoundTripper })
		require.True(t, ok, "%T", sent)
		sent = wrapper.WrappedRoundTripper()
	}
}

func TestConnect_NoAnswer(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	const content = `{"clusters": [{"name": "a", "cluster": {"server": "http://127.0.0.1:1"}}], "contexts": [{"name": "a", "context": {"cluster": "a"}}], "current-context": "a"}`
	require.NoError(t, os.WriteFile(kubeconfig, []byte(content), 0o600))
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, _, err := Connect(ctx, kubeconfig, "agent", time.Second)
	require.ErrorContains(t, err, "the API server at http://127.0.0.1:1 does not answer")
	require.ErrorContains(t, err, "connection refused")
	require.ErrorIs(t, ctx.Err(), context.DeadlineExceeded, "it tries again")
}
