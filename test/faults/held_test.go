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
var more = map[string]int64{
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
func mayGrow(kind goroutine) int64 {
	if kind.ours != "" && kind.ours != kind.entry {
		return 0
	}
	return more[kind.entry]
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

// held contains profiles of the goroutines of a replica and of its heap in use after a garbage collection. It omits resident memory,
// because the race detector does not release memory.
type held struct{ goroutines, heap *profile.Profile }

// held reads the profiles of the replica. The garbage collector runs twice, because memory in a sync.Pool survives one run.
func (r *replica) held(ctx context.Context) (held, error) {
	var found [3]*profile.Profile
	for i, path := range []string{"heap?gc=1", "heap?gc=1", "goroutine"} {
		var err error
		if found[i], err = r.profile(ctx, path); err != nil {
			return held{}, fmt.Errorf("%s: reading profile %s: %w", r.Name(), path, err)
		}
	}
	return held{goroutines: found[2], heap: found[1]}, nil
}

// settledAtFirst returns the profiles of the replica as soon as they no longer grow from one second to the next. A ready
// replica may still open connections.
func (r *replica) settledAtFirst(t *testing.T) held {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), cluster.Patience)
	defer cancel()
	var last map[goroutine]int64
	for {
		now, err := r.held(t.Context())
		require.NoError(t, err)
		kinds, _ := sums(now.goroutines, kindOf)
		if maps.Equal(kinds, last) || ctx.Err() != nil {
			return now
		}
		last = kinds
		pause(ctx, time.Second)
	}
}

// profile reads a profile of the replica. It closes the connection, which would otherwise count as a goroutine of the replica.
func (r *replica) profile(ctx context.Context, path string) (*profile.Profile, error) {
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
	return profile.Parse(response.Body)
}

// sums returns the sum of the samples by a key of their stacks, and the stack of the largest sample of each key. The innermost function is
// the first of a stack. The last value of a sample is the number of goroutines, or an estimate of the bytes in use.
func sums[K comparable](p *profile.Profile, key func(stack []string) K) (sum map[K]int64, largest map[K][]string) {
	sum, largest = map[K]int64{}, map[K][]string{}
	most := map[K]int64{}
	for _, s := range p.Sample {
		var stack []string
		for _, location := range s.Location {
			for _, line := range location.Line {
				stack = append(stack, line.Function.Name)
			}
		}
		if len(stack) == 0 {
			stack = []string{justBegun}
		}
		k, value := key(stack), s.Value[len(s.Value)-1]
		sum[k] += value
		if value > most[k] {
			most[k], largest[k] = value, stack
		}
	}
	return sum, largest
}

func kindOf(stack []string) goroutine {
	return goroutine{entry: stack[len(stack)-1], ours: oursIn(stack)}
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

// total returns the number of goroutines, or the bytes in use.
func total(p *profile.Profile) int64 {
	sum, _ := sums(p, func([]string) string { return "" })
	return sum[""]
}

// grown returns the growth that exceeds the limits: heap in bytes, and ours in bytes below one function of Prebind.
func (now held) grown(first held, heap, ours int64) []string {
	var found []string
	add := func(stack []string, format string, args ...any) {
		found = append(found, fmt.Sprintf(format, args...)+":\n\t"+strings.Join(stack, "\n\t"))
	}
	before, _ := sums(first.goroutines, kindOf)
	after, stacks := sums(now.goroutines, kindOf)
	for kind, is := range after {
		if may := mayGrow(kind); is > before[kind]+may {
			add(stacks[kind], "has %d goroutines of %s: started with %d, limit %d more; example stack", is, kind, before[kind], may)
		}
	}
	if was, is := total(first.heap), total(now.heap); is > was+heap {
		add(now.moreOf(first, 12), "has %s in use after a collection: started with %s, limit %s more; largest growth", mib(is), mib(was), mib(heap))
	}
	memory, _ := sums(first.heap, oursIn)
	used, largest := sums(now.heap, oursIn)
	for function, is := range used {
		if was := memory[function]; function != "" && is > was+ours {
			add(largest[function], "has %s in use that was allocated in %s: started with %s, limit %s more; largest allocation", mib(is), function, mib(was), mib(ours))
		}
	}
	return found
}

// moreOf lists the functions whose allocations have grown most.
func (now held) moreOf(first held, most int) []string {
	inner := func(stack []string) string { return stack[0] }
	was, _ := sums(first.heap, inner)
	is, _ := sums(now.heap, inner)
	growth := func(function string) int64 { return is[function] - was[function] }
	names := slices.SortedFunc(maps.Keys(is), func(a, b string) int { return cmp.Compare(growth(b), growth(a)) })
	var lines []string
	for _, name := range names[:min(most, len(names))] {
		lines = append(lines, fmt.Sprintf("%s more: %s", mib(growth(name)), name))
	}
	return lines
}

func mib[T int64 | float64](bytes T) string { return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20)) }
