// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/prebind/prebind/test/bench/stat"
)

// growthHeader is that of the columns of a row of cost against size.
var growthHeader = []string{"", "Measurement", "Number of objects", "At 1×", "At 10×", "10× / 1×", "Met"}

// mostGrowth is the target: the maximum ratio of a cluster that is ten times as large.
const mostGrowth = 1.5

// growthRow is a line of the table of cost against size. The round of its samples is the size.
type growthRow struct {
	what, file, metric, unit string
	// free rows have no target for the ratio, because the work itself grows.
	free bool
	// most is the maximum value at the larger size. It is nil for no target.
	most *float64
}

// growthTable returns all rows.
func growthTable() []growthRow {
	var rows []growthRow
	add := func(what, file, prefix string, metrics ...string) {
		for _, m := range metrics {
			metric, unit := m, ""
			for _, u := range []string{" ms", " KiB"} {
				if n := len(m) - len(u); n > 0 && m[n:] == u {
					metric, unit = m[:n], u
				}
			}
			rows = append(rows, growthRow{what: what + ": " + metric, file: "growth-" + file, metric: prefix + ": " + m, unit: unit})
		}
	}
	const cpu, p50, allocated, requests = "CPU ms", "p50 ms", "allocated KiB", "API requests"
	add("bind, by free local volumes of the class", "static-local", "bind", cpu, "PreFlight ms", p50, allocated)
	add("bind, by free shared volumes of the class", "static-shared", "bind", cpu, "PreFlight ms", p50, allocated)
	add("device grant, by nodes with device records", "devices", "bind", cpu, "PreFlight ms", "PreBind ms", p50, allocated, requests)
	add("10 s of sweeps, by device records", "devices", "10 s at rest", cpu, allocated, requests)
	rows = append(rows, growthRow{what: "start of a new leader, by device records: API requests", file: "growth-devices", metric: "start: API requests", free: true})
	add("start of a replica, by forged marks", "marks", "start until rest", cpu, requests)
	add("10 s of sweeps, by forged marks", "marks", "10 s after it", allocated, requests)
	return append(rows,
		growthRow{what: "live heap per bound claim with its volume, by bound pairs", file: "growth-bound", metric: "live heap bytes/pair", unit: " B", free: true, most: new(1500.0)},
		growthRow{what: "resident memory per bound claim with its volume, by bound pairs", file: "growth-bound", metric: "resident bytes/pair", unit: " B", free: true},
		growthRow{what: "peak resident memory after start and first bind, by bound pairs", file: "growth-bound", metric: "most resident MiB", unit: " MiB", free: true, most: new(512.0)},
		growthRow{what: "time from start to ready, by bound pairs", file: "growth-bound", metric: "seconds to ready", unit: " s", free: true},
		growthRow{what: "first bind after the start, by bound pairs", file: "growth-bound", metric: "first bind ms", unit: " ms", free: true},
	)
}

// grown is a row with its values.
type grown struct {
	growthRow
	sizes  [2]int
	values [2]float64
}

// of returns the result at the two largest sizes, or false if there are fewer sizes.
func (r growthRow) of(samples []stat.Sample) (grown, bool) {
	found := grown{growthRow: r}
	bySize := map[int]float64{}
	var sizes []int
	for _, s := range samples {
		if s.Metric == r.metric && s.Variant == prebind {
			bySize[s.Round] = s.Value
			sizes = append(sizes, s.Round)
		}
	}
	slices.Sort(sizes)
	if len(sizes) < 2 {
		return found, false
	}
	copy(found.sizes[:], sizes[len(sizes)-2:])
	for i, size := range found.sizes {
		found.values[i] = bySize[size]
	}
	return found, true
}

// ratio returns 0 if the first value is 0.
func (g grown) ratio() float64 {
	if g.values[0] <= 0 {
		return 0
	}
	return g.values[1] / g.values[0]
}

func (g grown) target() string {
	switch {
	case g.most != nil:
		return "≤ " + number(*g.most) + g.unit
	case g.free:
		return "–"
	default:
		return fmt.Sprintf("≤ %s×", number(mostGrowth))
	}
}

func (g grown) met() string {
	switch {
	case g.most == nil && g.free:
		return ""
	case g.most != nil && g.values[1] > *g.most, !g.free && g.ratio() > mostGrowth:
		return "no"
	default:
		return "yes"
	}
}

// ratioText returns the ratio, or a dash without one.
func (g grown) ratioText() string {
	if r := g.ratio(); r > 0 {
		return number(r) + "×"
	}
	return "–"
}

func (g grown) objects() string { return fmt.Sprintf("%d → %d", g.sizes[0], g.sizes[1]) }

// fields returns the cells of the row.
func (g grown) fields() []string {
	return []string{"", g.what, g.objects(), number(g.values[0]) + g.unit, number(g.values[1]) + g.unit, g.ratioText(), g.met()}
}

func grownOf(data map[string][]stat.Sample) []grown {
	var results []grown
	for _, r := range growthTable() {
		if found, ok := r.of(data[r.file]); ok {
			results = append(results, found)
		}
	}
	return results
}

// growthMarkdown returns a list of the largest ratio of each kind of object, and the rows with a maximum.
func growthMarkdown(results []grown) string {
	worst := map[string]float64{}
	for _, g := range results {
		if !g.free {
			worst[g.kind()] = max(worst[g.kind()], g.ratio())
		}
	}
	var out strings.Builder
	item := func(g grown, result string) {
		verdict := ""
		if g.met() == "no" {
			verdict = ", missed"
		}
		fmt.Fprintf(&out, "- %s, %s: %s (%s%s)\n", g.what, g.objects(), result, g.target(), verdict)
	}
	for _, g := range results {
		switch {
		case g.most != nil:
			item(g, number(g.values[1])+g.unit)
		case !g.free && g.ratio() == worst[g.kind()]:
			item(g, g.ratioText())
		}
	}
	return out.String()
}

// kind returns the part of the name before the metric.
func (r growthRow) kind() string {
	kind, _, _ := strings.Cut(r.what, ":")
	return kind
}
