// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// at is a sample of so many goroutines, or bytes.
func at(value int, stack ...string) sample {
	return sample{count: value, bytes: float64(value), stack: stack}
}

// TestGrown checks that the report of growth contains the stack.
func TestGrown(t *testing.T) {
	const run, plugin, conn = own + "binder.(*attempts).run", own + "binder/plugins/device.(*Plugin).PreBind", "net/http.(*conn).serve"
	most := func(kind goroutine) int {
		if kind.ours == "" {
			return 2
		}
		return 0
	}
	look := func(goroutines ...sample) held {
		return heldBy(goroutines, nil)
	}
	first := look(at(1, "select", run), at(3, "read", conn))
	cases := map[string]struct {
		reason string
		now    held
		want   []string
	}{
		"Same":      {reason: "no number has grown", now: first},
		"Fewer":     {reason: "fewer goroutines are permitted", now: look(at(1, "read", conn))},
		"WhereElse": {reason: "the number per entry function is the same", now: look(at(1, "select", plugin, "contained", run), at(3, "write", conn))},
		"Ours": {
			reason: "the goroutines of Prebind may not grow", now: look(at(1, "select", run), at(1, "sleep", plugin, "contained", run)),
			want: []string{"has 2 goroutines of " + run + ": started with 1, limit 0 more; example stack:\n\tsleep\n\t" + plugin + "\n\tcontained\n\t" + run},
		},
		"OfOthers": {reason: "the growth is within the limit", now: look(at(5, "read", conn))},
		"TooManyOfOthers": {
			reason: "the growth exceeds the limit", now: look(at(4, "read", conn), at(2, "write", conn)),
			want: []string{"has 6 goroutines of " + conn + ": started with 3, limit 2 more; example stack:\n\twrite\n\t" + conn},
		},
		"OursInOthers": {
			reason: "a goroutine of a server that runs Prebind's code belongs to Prebind", now: look(at(1, "select", plugin, conn)),
			want: []string{"has 1 goroutines of " + conn + " in " + plugin + ": started with 0, limit 0 more; example stack:\n\tselect\n\t" + plugin + "\n\t" + conn},
		},
		"Asker": {reason: "the goroutine that writes the profile does not count", now: look(at(7, "runtime/pprof.writeGoroutine", conn))},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tc.want, tc.now.grown(first, most, 0, 0), tc.reason)
		})
	}
}

// TestGrownHeap checks that the report of heap growth contains the functions that allocated the memory.
func TestGrownHeap(t *testing.T) {
	look := func(samples ...sample) held { return heldBy(nil, samples) }
	none := func(goroutine) int { return 0 }
	first := look(at(9<<20, "decode", "main"), at(1<<20, "cache", "main"))
	assert.Empty(t, look(at(12<<20, "cache", "main")).grown(first, none, 2<<20, 0), "the sum of all functions is within the limit")
	now := look(at(10<<20, "decode", "main"), at(1<<20, "decode", "other"), at(3<<19, "cache", "main"), at(1, "less", "main"))
	assert.Equal(t, []string{"has 12.5 MiB in use after a collection: started with 10.0 MiB, limit 2.0 MiB more; largest growth:\n\t" +
		"2.0 MiB more: decode\n\t0.5 MiB more: cache\n\t0.0 MiB more: less"}, now.grown(first, none, 2<<20, 0))
	assert.Len(t, now.moreOf(first, 1), 1)
}

// TestGrownOurs checks that memory of ended calls or attempts is reported, even if it is small compared with the heap.
func TestGrownOurs(t *testing.T) {
	const run, call = own + "binder.(*attempts).run", own + "webhook.(*Handler).ServeHTTP"
	look := func(samples ...sample) held { return heldBy(nil, samples) }
	none := func(goroutine) int { return 0 }
	first := look(at(1<<20, "decode", call, "serve"))
	const much = 1 << 30
	assert.Empty(t, look(at(2<<20, "decode", call, "serve"), at(1<<20, "make", own+"binder.inner", run), at(9<<20, "list")).grown(first, none, much, 1<<20))
	now := look(at(1<<20, "decode", call, "serve"), at(1<<20, "less", run), at(1<<21, "make", own+"binder.inner", run))
	assert.Equal(t, []string{"has 3.0 MiB in use that was allocated in " + run + ": started with 0.0 MiB, limit 1.0 MiB more; largest allocation:\n\t" +
		"make\n\t" + own + "binder.inner\n\t" + run}, now.grown(first, none, much, 1<<20))
}

// TestMayGrow checks that a replica may have no more goroutines of Prebind than at its start.
func TestMayGrow(t *testing.T) {
	const run, conn = own + "binder/work.(*Set).follow", "net/http.(*conn).serve"
	for kind, want := range map[goroutine]int{
		{entry: run, ours: run}: 0, {entry: conn}: 6, {entry: conn, ours: run}: 0, {entry: "main.other"}: 0,
	} {
		assert.Equal(t, want, mayGrow(kind), kind)
	}
}
