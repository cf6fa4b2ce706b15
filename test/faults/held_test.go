// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"

	"github.com/prebind/prebind/test/cluster"
)

const (
	// own is the prefix of the names of Prebind's functions.
	own = "github.com/prebind/prebind/"
	// justBegun replaces the function of a goroutine that has not run yet.
	justBegun = "a goroutine that has not started"
	// moreHeap is the permitted growth of the heap in use, in bytes. moreOurs is the permitted growth below one function of
	// Prebind.
	moreHeap = 3 << 20
	// moreHeapAttacked is moreHeap after an attack. Each watch keeps a buffer for the largest object that it has read, up to
	// 1.5 MiB, and client-go keeps events for six minutes.
	moreHeapAttacked = 9 << 20
	moreOurs         = 1 << 20
	// moreOursAttacked is moreOurs after an attack. A call creates up to two events of about 3 KiB in total, which client-go
	// keeps. The attack has 400 waiting pods.
	moreOursAttacked = 3 << 20
)

// more contains the permitted growth of goroutines by entry function. The number of other goroutines may not grow.
var more = map[string]int{
	// Connections to the API server. An idle connection ends after 90 s.
	"net/http.(*persistConn).readLoop":  6,
	"net/http.(*persistConn).writeLoop": 6,
	// Connections of the API server and of metrics clients. They also end after 90 s.
	"net/http.(*conn).serve":                6,
	"net/http.(*connReader).backgroundRead": 2,
	justBegun:                               2, // The connection that requests the profile.

	// client-go starts these goroutines with the first event of each of the two event APIs.
	"k8s.io/apimachinery/pkg/util/wait.UntilWithContext":                               2,
	"k8s.io/apimachinery/pkg/watch.(*Broadcaster).loop":                                2,
	"k8s.io/client-go/tools/events.(*eventBroadcasterImpl).startEventWatcher.func1":    2,
	"k8s.io/client-go/tools/events.(*eventBroadcasterImpl).startRecordingEvents.func2": 1,
	"k8s.io/client-go/tools/record.(*eventBroadcasterImpl).StartEventWatcher.func1":    2,
}

// mayGrow returns the permitted growth of a kind. A goroutine of a server that runs Prebind's code belongs to Prebind.
func mayGrow(kind goroutine) int {
	if kind.ours != "" && kind.ours != kind.entry {
		return 0
	}
	return more[kind.entry]
}

// held contains the goroutines of a replica and the heap in use after a garbage collection. It omits resident memory, because
// the race detector does not release memory.
type held struct {
	goroutines map[goroutine]int
	// stacks contains one stack of each kind for reports.
	stacks map[goroutine][]string
	// heap is in bytes. functions contains the memory that each function allocated, ours the memory below each outermost
	// function of Prebind, and largest the largest allocation of each of them.
	heap            float64
	functions, ours map[string]float64
	largest         map[string]allocation
}

// allocation is a sample of the heap.
type allocation struct {
	bytes float64
	stack []string
}

// sample is a stack of a profile: of goroutines, or of memory in use.
type sample struct {
	count int
	bytes float64
	// stack contains the names of the functions, the innermost first. It is never empty.
	stack []string
}

// goroutine is a kind of goroutines.
type goroutine struct {
	// entry is the outermost function.
	entry string
	// ours is the outermost function of Prebind, or empty.
	ours string
}

// String implements fmt.Stringer.
func (g goroutine) String() string {
	if g.ours == "" || g.ours == g.entry {
		return g.entry
	}
	return g.entry + " in " + g.ours
}

// held reads the profiles of the replica. The garbage collector runs twice, because memory in a sync.Pool survives one run.
func (r *replica) held(ctx context.Context) (held, error) {
	var found [3][]sample
	for i, path := range []string{"heap?gc=1", "heap?gc=1", "goroutine"} {
		var err error
		if found[i], err = r.profile(ctx, path); err != nil {
			return held{}, fmt.Errorf("%s: reading profile %s: %w", r.Name(), path, err)
		}
	}
	return heldBy(found[2], found[1]), nil
}

// settledAtFirst returns the profiles of the replica as soon as they no longer grow from one second to the next. A ready
// replica may still open connections.
func (r *replica) settledAtFirst(t *testing.T) held {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), cluster.Patience)
	defer cancel()
	var last held
	for {
		now, err := r.held(t.Context())
		require.NoError(t, err)
		if maps.Equal(now.goroutines, last.goroutines) || ctx.Err() != nil {
			return now
		}
		last = now
		pause(ctx, time.Second)
	}
}

// profile reads a profile of the replica. It closes the connection, which would otherwise count as a goroutine of the replica.
func (r *replica) profile(ctx context.Context, path string) ([]sample, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.debug+"/debug/pprof/"+path, nil)
	if err != nil {
		return nil, err
	}
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	parsed, err := profile.Parse(response.Body)
	if err != nil {
		return nil, fmt.Errorf("the response is %s: %w", response.Status, err)
	}
	var found []sample
	for _, s := range parsed.Sample {
		// The types of a profile of the heap are allocated objects and bytes, and those in use. The values are estimates for the whole
		// heap, of which the profile has samples.
		one := sample{count: int(s.Value[0]), bytes: float64(s.Value[len(s.Value)-1])}
		for _, location := range s.Location {
			for _, line := range location.Line {
				one.stack = append(one.stack, line.Function.Name)
			}
		}
		if len(one.stack) == 0 {
			one.stack = []string{justBegun}
		}
		found = append(found, one)
	}
	return found, nil
}

// heldBy evaluates the two profiles.
func heldBy(goroutines, heap []sample) held {
	h := held{
		goroutines: map[goroutine]int{}, stacks: map[goroutine][]string{},
		functions: map[string]float64{}, ours: map[string]float64{}, largest: map[string]allocation{},
	}
	for _, s := range goroutines {
		if slices.Contains(s.stack, "runtime/pprof.writeGoroutine") {
			continue // The goroutine that writes this profile.
		}
		kind := goroutine{entry: s.stack[len(s.stack)-1], ours: oursIn(s.stack)}
		h.goroutines[kind] += s.count
		h.stacks[kind] = s.stack
	}
	for _, s := range heap {
		h.heap += s.bytes
		h.functions[s.stack[0]] += s.bytes
		ours := oursIn(s.stack)
		h.ours[ours] += s.bytes
		if s.bytes > h.largest[ours].bytes {
			h.largest[ours] = allocation{bytes: s.bytes, stack: s.stack}
		}
	}
	return h
}

// oursIn returns the outermost function of Prebind in the stack, or an empty string.
func oursIn(stack []string) string {
	ours := ""
	for _, function := range stack {
		if strings.HasPrefix(function, own) {
			ours = function
		}
	}
	return ours
}

// grown returns the growth that exceeds the limits: most per kind, heap in bytes, and ours in bytes below one function of
// Prebind.
func (now held) grown(first held, most func(goroutine) int, heap, ours float64) []string {
	var found []string
	for _, kind := range slices.SortedFunc(maps.Keys(now.goroutines), func(a, b goroutine) int { return cmp.Compare(a.String(), b.String()) }) {
		was, is := first.goroutines[kind], now.goroutines[kind]
		if may := most(kind); is > was+may {
			found = append(found, fmt.Sprintf("has %d goroutines of %s: started with %d, limit %d more; example stack:\n\t%s",
				is, kind, was, may, strings.Join(now.stacks[kind], "\n\t")))
		}
	}
	if now.heap > first.heap+heap {
		found = append(found, fmt.Sprintf("has %s in use after a collection: started with %s, limit %s more; largest growth:\n\t%s",
			mib(now.heap), mib(first.heap), mib(heap), strings.Join(now.moreOf(first, 12), "\n\t")))
	}
	for _, function := range slices.Sorted(maps.Keys(now.ours)) {
		was, is := first.ours[function], now.ours[function]
		if function != "" && is > was+ours {
			found = append(found, fmt.Sprintf("has %s in use that was allocated in %s: started with %s, limit %s more; largest allocation:\n\t%s",
				mib(is), function, mib(was), mib(ours), strings.Join(now.largest[function].stack, "\n\t")))
		}
	}
	return found
}

// moreOf lists the functions with the largest growth.
func (now held) moreOf(first held, most int) []string {
	by := map[string]float64{}
	for function, bytes := range now.functions {
		if d := bytes - first.functions[function]; d > 0 {
			by[function] = d
		}
	}
	names := slices.SortedFunc(maps.Keys(by), func(a, b string) int { return cmp.Or(cmp.Compare(by[b], by[a]), cmp.Compare(a, b)) })
	lines := make([]string, 0, most)
	for _, name := range names[:min(most, len(names))] {
		lines = append(lines, fmt.Sprintf("%s more: %s", mib(by[name]), name))
	}
	return lines
}

func mib(bytes float64) string { return fmt.Sprintf("%.1f MiB", bytes/(1<<20)) }

func (now held) count() int {
	sum := 0
	for _, n := range now.goroutines {
		sum += n
	}
	return sum
}
