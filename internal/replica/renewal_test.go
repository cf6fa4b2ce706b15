// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// TestReplicas_RenewalWithoutAnswer: the next renewal follows on time. Otherwise other replicas
// would consider this one dead.
func TestReplicas_RenewalWithoutAnswer(t *testing.T) {
	renewals := make(chan int, 10)
	var patches atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPatch {
			_, _ = io.Copy(io.Discard, r.Body)
			n := int(patches.Add(1))
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
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL, Timeout: 100 * time.Millisecond})
	require.NoError(t, err)
	replicas := newReplicas(t, client, "mine")
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
}
