// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// sample is a stack of a profile: of goroutines, or of memory in use.
type sample struct {
	count int
	// bytes is the estimate for the whole heap, of which the profile has samples.
	bytes float64
	// stack contains the names of the functions, the innermost first. It is never empty.
	stack []string
}

// The lines of a profile as /debug/pprof writes it with debug=1.
var (
	heapHeader     = regexp.MustCompile(`^heap profile: .* @ heap/(\d+)$`)
	heapLine       = regexp.MustCompile(`^(\d+): (\d+) \[\d+: \d+\] @`)
	goroutineLine  = regexp.MustCompile(`^(\d+) @`)
	frameLine      = regexp.MustCompile(`^#\t+0x[0-9a-f]+\t+(.+)\+0x[0-9a-f]+\t`)
	profileHeaders = regexp.MustCompile(`^(heap|goroutine) profile: `)
)

// parseProfile reads a profile of goroutines or of the heap that was written with debug=1.
func parseProfile(text string) ([]sample, error) {
	if !profileHeaders.MatchString(text) {
		return nil, fmt.Errorf("not a profile of goroutines or of the heap: %.100q", text)
	}
	var found []sample
	rate := 1.0
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if parts := heapHeader.FindStringSubmatch(line); parts != nil {
			// The header contains twice the rate.
			rate = number(parts[1]) / 2
		} else if parts := heapLine.FindStringSubmatch(line); parts != nil {
			count, bytes := number(parts[1]), number(parts[2])
			found = append(found, sample{count: int(count), bytes: whole(count, bytes, rate)})
		} else if parts := goroutineLine.FindStringSubmatch(line); parts != nil {
			found = append(found, sample{count: int(number(parts[1]))})
		} else if parts := frameLine.FindStringSubmatch(line); parts != nil && len(found) > 0 {
			last := &found[len(found)-1]
			last.stack = append(last.stack, parts[1])
		}
	}
	for i := range found {
		if len(found[i].stack) == 0 {
			found[i].stack = []string{justBegun}
		}
	}
	return found, nil
}

// number parses decimal digits.
func number(digits string) float64 {
	n, _ := strconv.ParseFloat(digits, 64)
	return n
}

// whole estimates the bytes on the heap from the sampled bytes. The probability of a sample grows with the size of the object.
func whole(count, bytes, rate float64) float64 {
	if count == 0 {
		return 0
	}
	return bytes / (1 - math.Exp(-bytes/count/rate))
}

func TestParseProfile(t *testing.T) {
	goroutines, err := parseProfile("goroutine profile: total 4\n" +
		"3 @ 0x47c0ed 0x47c0ee\n# labels: {\"a\":\"b\"}\n#\t0x47c0ed\tinternal/poll.(*pollDesc).wait+0x84\t/go/src/poll.go:84\n#\t0x47c0ee\t\tnet.(*conn).Read+0x1\t\t\t/go/src/net.go:1\n\n" +
		"1 @ 0x1\n\n")
	require.NoError(t, err)
	assert.Equal(t, []sample{{count: 3, stack: []string{"internal/poll.(*pollDesc).wait", "net.(*conn).Read"}}, {count: 1, stack: []string{justBegun}}}, goroutines)

	heap, err := parseProfile("heap profile: 2: 1024 [9: 99999] @ heap/1024\n2: 1024 [3: 1536] @ 0x1 0x2\n#\t0x1\tmain.f[...]+0x2\t/main.go:1\n\n0: 0 [6: 9] @ 0x1\n# runtime.MemStats\n# Alloc = 1\n")
	require.NoError(t, err)
	require.Len(t, heap, 2)
	assert.Equal(t, []string{"main.f[...]"}, heap[0].stack)
	assert.InDelta(t, 1024/(1-1/math.E), heap[0].bytes, 1, "an object of the size of the rate is sampled in 63 of 100 cases")
	assert.Zero(t, heap[1].bytes, "nothing is in use")

	_, err = parseProfile("Not Found")
	assert.Error(t, err)
}
