// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
	"github.com/prebind/prebind/test/install"
)

// burst is the number of Bindings that TestBurst posts at once. It is larger than the number of connections that a replica accepts.
const burst = 2000

// TestBurst posts Bindings at once through one API server, which opens a connection to the only replica for each of them. All of them
// are bound. It runs alone, because the API server gives each handshake 10 s.
func TestBurst(t *testing.T) {
	c := ownCluster(t, cluster.Options{})
	// The race detector makes each TLS handshake several times as slow.
	binary, err := install.Build(t.Context(), install.BuildOptions{Dir: t.TempDir()})
	require.NoError(t, err)
	w, err := newWorldWith(t.Context(), install.Options{Cluster: c, Binary: binary}, 1)
	require.NoError(t, err)
	replica := w.prebind.Replicas()[0]
	t.Cleanup(func() { assert.NoError(t, replica.Kill()) })
	b := newBench(t, w, nil)
	names := make(chan string, burst)
	for i := range burst {
		names <- "web-" + strconv.Itoa(i)
	}
	close(names)
	var created sync.WaitGroup
	for range 16 {
		created.Go(func() {
			for name := range names {
				_, err := b.createPod(name, byHand)
				assert.NoError(t, err)
			}
		})
	}
	created.Wait()

	begin := time.Now()
	var bound sync.WaitGroup
	for i := range burst {
		bound.Go(func() {
			assert.NoError(t, b.bindByHand(gen.Binding(gen.Pod("web-"+strconv.Itoa(i), gen.InNamespace(b.ns)), "node-1")))
		})
	}
	bound.Wait()
	t.Logf("%d Bindings at once: %s", burst, time.Since(begin).Round(time.Millisecond))
	require.NoError(t, replica.Err())
}
