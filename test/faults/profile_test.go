// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
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
