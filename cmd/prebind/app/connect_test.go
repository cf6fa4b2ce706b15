// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/prebind/prebind/binder/replica"
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
	require.ErrorContains(t, err, "has not answered within 100ms")
	assert.Equal(t, http.MethodDelete, <-givenUp)
	_, err = pods.List(t.Context(), metav1.ListOptions{})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	assert.Equal(t, http.MethodGet, <-givenUp)

	own, cancel := context.WithCancel(t.Context())
	cancel()
	err = pods.Delete(own, "web", metav1.DeleteOptions{})
	require.ErrorIs(t, err, context.Canceled)
	assert.NotContains(t, err.Error(), "has not answered", "it was the caller who gave up")

	select {
	case event, open := <-watching.ResultChan():
		t.Errorf("the watch should go on as it was: %v, open: %v", event, open)
	default:
	}
	watching.Stop()
	assert.Equal(t, http.MethodGet, <-givenUp)
}

// TestLeaseClient: a renewal without an answer does not keep the next from coming. Else
// the others would take the replica for gone.
func TestLeaseClient(t *testing.T) {
	renewals := make(chan int, 10)
	var puts atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			_, _ = io.Copy(io.Discard, r.Body)
			n := int(puts.Add(1))
			if renewals <- n; n == 1 {
				<-r.Context().Done()
				return
			}
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"mine","resourceVersion":"1"},"spec":{}}`)
	}))
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections)
	client, err := leaseClient(&rest.Config{Host: server.URL}, 100*time.Millisecond)
	require.NoError(t, err)
	replicas, err := replica.New(replica.Options{ID: "mine", Client: client, Namespace: "default", Clock: clock.RealClock{}})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { assert.NoError(t, replicas.Start(ctx)) })
	defer running.Wait()
	defer cancel()
	for want := range 2 {
		select {
		case got := <-renewals:
			assert.Equal(t, want+1, got)
		case <-time.After(20 * time.Second):
			t.Fatal("there should be another renewal")
		}
	}
	assert.Less(t, 2*renewalTakes, leaseDuration)
}

// TestRestConfigIsImpatient: whatever is made of it gives up at some time.
func TestRestConfigIsImpatient(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := `{"apiVersion":"v1","kind":"Config","clusters":[{"name":"c","cluster":{"server":%q}}],"contexts":[{"name":"c","context":{"cluster":"c"}}],"current-context":"c"}`
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, text, "http://127.0.0.1:1"), 0o600))
	config, err := restConfig(file)
	require.NoError(t, err)
	transport, err := rest.TransportFor(config)
	require.NoError(t, err)
	for {
		if i, ok := transport.(impatient); ok {
			assert.Equal(t, answerTakes, i.takes)
			assert.Zero(t, config.Timeout, "it would end watches")
			return
		}
		wrapper, ok := transport.(interface{ WrappedRoundTripper() http.RoundTripper })
		require.True(t, ok, "%T", transport)
		transport = wrapper.WrappedRoundTripper()
	}
}
