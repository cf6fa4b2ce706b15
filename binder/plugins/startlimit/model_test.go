// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package startlimit

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"

	"github.com/prebind/prebind/test/gen"
	"github.com/prebind/prebind/test/plugintest"
	"github.com/prebind/prebind/test/seeds"
)

// TestModel binds many pods to a node concurrently. Binds fail, are canceled, and are observed late. At every time,
// at most as many pods start as the limit allows, and all binds that are not canceled get a slot.
func TestModel(t *testing.T) {
	for _, seed := range seeds.Of(t, 20) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { runModel(t, seed) })
		})
	}
}

func runModel(t *testing.T, seed uint64) {
	const limit, binds = 5, 60
	args := small(limit)
	args.Wait, args.StartTimeout = time.Hour, time.Hour
	w := newWorld(t, args)
	// starts counts pods that start on each node, as only the test knows them: from PreBind to Running.
	var starts [2]atomic.Int32
	var taken atomic.Int32
	var full atomic.Bool
	var group sync.WaitGroup
	for i := range binds {
		rng := rand.New(rand.NewPCG(seed, uint64(i))) //nolint:gosec // Not a secret.
		group.Go(func() {
			pause := func(most time.Duration) { <-time.After(time.Duration(rng.Int64N(int64(most)))) }
			on := rng.IntN(2)
			node := gen.Node([]string{nodeA, "node-b"}[on])
			pod := thePod(fmt.Sprintf("pod-%d", i))
			bc := plugintest.Bind(pod, node)
			bc.Attempt = pod.Name
			pause(time.Second)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if rng.IntN(5) == 0 {
				time.AfterFunc(time.Duration(rng.Int64N(int64(10*time.Second))), cancel)
			}
			var err error
			takes := w.Take(ctx, bc)
			if !takes {
				err = w.PreBind(ctx, bc)
			}
			if err != nil {
				assert.Error(t, ctx.Err(), "only a canceled bind gets no slot: %v", err)
				return
			}
			taken.Add(1)
			n := starts[on].Add(1)
			if n == limit {
				full.Store(true)
			}
			assert.LessOrEqual(t, n, int32(limit), "pods that start on %s", node.Name)
			pause(time.Second)
			if rng.IntN(4) == 0 {
				starts[on].Add(-1)
				if !takes {
					assert.NoError(t, w.PreBindRollBack(t.Context(), bc))
				}
				return
			}
			now := bound(pod.Name)
			now.Spec.NodeName = node.Name
			if rng.IntN(2) == 0 {
				w.PostBind(t.Context(), bc)
				w.server.Put(now)
			} else {
				w.server.Put(now)
				w.PostBind(t.Context(), bc)
			}
			pause(10 * time.Second)
			starts[on].Add(-1)
			now.Status.Phase = corev1.PodRunning
			w.server.Put(now)
		})
	}
	group.Wait()
	assert.True(t, full.Load(), "all slots are used")
	assert.Greater(t, taken.Load(), int32(binds/2))
	<-time.After(observeTime)
	synctest.Wait()
	assert.Empty(t, w.slots.nodes, "nothing is left")
}
