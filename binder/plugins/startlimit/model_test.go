// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package startlimit

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/prebind/prebind/test/seeds"
)

// TestModel_Replicas binds pods through several replicas that observe binds late. At every time, the replicas exceed the
// limit by no more than their shares.
func TestModel_Replicas(t *testing.T) {
	exceeded, broken, all := 0, 0, seeds.Of(t, 150)
	for _, seed := range all {
		c := newCrowd(seed)
		bound := c.limit + (len(c.replicas)-1)*max(1, c.limit/len(c.replicas))
		c.run(len(c.replicas))
		require.LessOrEqual(t, c.most, bound, "seed %d: %d replicas, limit %d", seed, len(c.replicas), c.limit)
		if c.most > c.limit {
			exceeded++
		}
		c.settle()
		for i, r := range c.replicas {
			require.True(t, c.take(r, len(c.replicas)), "seed %d: replica %d can use an idle node", seed, i)
			c.settle()
		}
		if c = newCrowd(seed); len(c.replicas) > 1 {
			if c.run(1); c.most > bound {
				broken++
			}
		}
	}
	t.Logf("%d runs exceed the limit, %d exceed the bound without shares", exceeded, broken)
	if len(all) > 1 {
		assert.Positive(t, exceeded, "the bound is not the limit")
		assert.Positive(t, broken, "replicas without shares exceed the bound")
	}
}

// TestModel_SameView lets all replicas bind pods after they have observed the same pods.
func TestModel_SameView(t *testing.T) {
	for _, seed := range seeds.Of(t, 150) {
		c := newCrowd(seed)
		for range 20 {
			c.observeAll()
			for _, r := range c.replicas {
				for c.take(r, len(c.replicas)) {
				}
			}
			require.LessOrEqual(t, c.most, c.limit+len(c.replicas)-1, "seed %d: %d replicas, limit %d", seed, len(c.replicas), c.limit)
			for len(c.open) > 0 {
				c.commit()
			}
			for range c.rng.IntN(c.limit + 1) {
				c.start()
			}
		}
	}
}

// crowd is a node, and replicas that observe its pods with a delay. The API server has one history of all binds and starts.
type crowd struct {
	rng      *rand.Rand
	limit    int
	replicas []*observer
	history  []change
	// open are the pods whose binds have a slot, and bound are those that start.
	open, bound []types.UID
	made        int
	// most is the maximum of pods that had a slot or started at the same time.
	most int
}

// change is a bind of a pod, or the end of its start.
type change struct {
	uid     types.UID
	started bool
}

// observer is a replica that has observed a prefix of the history.
type observer struct {
	*slots
	observed int
	// slow observers observe rarely.
	slow int
}

func newCrowd(seed uint64) *crowd {
	c := &crowd{rng: rand.New(rand.NewPCG(seed, 0))} //nolint:gosec // Not a secret.
	c.limit = 1 + c.rng.IntN(12)
	for range 1 + c.rng.IntN(4) {
		held := newTestSlots(func(string) {})
		held.clock = testingclock.NewFakeClock(time.Unix(1000, 0))
		c.replicas = append(c.replicas, &observer{slots: held, slow: 1 + c.rng.IntN(20)})
	}
	return c
}

// run makes random steps. The replicas assume that the free slots are shared by the number.
func (c *crowd) run(sharers int) {
	for range 2000 {
		r := c.replicas[c.rng.IntN(len(c.replicas))]
		switch c.rng.IntN(6) {
		case 0, 1:
			c.take(r, sharers)
		case 2:
			c.commit()
		case 3:
			if c.rng.IntN(3) == 0 {
				c.start()
			}
		case 4:
			c.fail()
		default:
			if c.rng.IntN(r.slow) == 0 {
				c.observe(r, c.rng.IntN(len(c.history)+1))
			}
		}
	}
}

// take binds a new pod through the replica.
func (c *crowd) take(r *observer, sharers int) bool {
	c.made++
	uid := types.UID(fmt.Sprint(c.made))
	given := rules{limit: c.limit, replicas: sharers}
	if !r.reserve(nodeA, "default", uid, given, false) {
		return false
	}
	c.open = append(c.open, uid)
	c.most = max(c.most, len(c.open)+len(c.bound))
	return true
}

// pick removes one of the pods.
func (c *crowd) pick(from *[]types.UID) (types.UID, bool) {
	if len(*from) == 0 {
		return "", false
	}
	i := c.rng.IntN(len(*from))
	uid := (*from)[i]
	*from = slices.Delete(*from, i, i+1)
	return uid, true
}

// commit ends one of the binds successfully.
func (c *crowd) commit() {
	if uid, ok := c.pick(&c.open); ok {
		c.bound, c.history = append(c.bound, uid), append(c.history, change{uid: uid})
	}
}

// fail ends one of the binds without success.
func (c *crowd) fail() {
	if uid, ok := c.pick(&c.open); ok {
		for _, r := range c.replicas {
			r.remove(nodeA, uid, func(*slot) bool { return true })
		}
	}
}

// start ends the start of one of the pods.
func (c *crowd) start() {
	if uid, ok := c.pick(&c.bound); ok {
		c.history = append(c.history, change{uid: uid, started: true})
	}
}

// observe lets the replica observe the history until the index.
func (c *crowd) observe(r *observer, until int) {
	for ; r.observed < until; r.observed++ {
		seen := c.history[r.observed]
		pod := bound(string(seen.uid))
		if seen.started {
			r.slots.ended(pod)
			continue
		}
		r.slots.observed(pod)
	}
}

func (c *crowd) observeAll() {
	for _, r := range c.replicas {
		c.observe(r, len(c.history))
	}
}

// settle ends all binds and starts.
func (c *crowd) settle() {
	for len(c.open) > 0 {
		c.commit()
	}
	for len(c.bound) > 0 {
		c.start()
	}
	c.observeAll()
}
