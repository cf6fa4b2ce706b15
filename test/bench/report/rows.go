// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/prebind/prebind/test/bench/stat"
)

// row is a line of the table of results.
type row struct {
	number int
	what   string
	// file contains the samples, and of selects the values.
	file string
	of   func(samples []stat.Sample) []float64
	// by reduces the values to the result. nil is the median.
	by func(values []float64) float64
	// most and least are the target, which is nil for a row without one.
	most, least *float64
	// unit follows the numbers: × for a ratio.
	unit string
}

// Names of variants and metrics in the samples.
const (
	none      = "none"
	nothing   = "nothing"
	constant  = "constant"
	following = "following"
	prebind   = "prebind"
	informer  = "informer"
	// nodePlugins is Prebind with the plugins of nodes. In its files, prebind is Prebind without them.
	nodePlugins = "node-plugins"
	// Prebind with the plugin policy, and no BindPolicy, 200 BindPolicies that do not match, and five that match. In their file,
	// prebind is Prebind without the plugin.
	policies          = "policies"
	policiesUnmatched = "policies-unmatched"
	policiesMatching  = "policies-matching"
	// Other products.
	admissionPolicy = "admission-policy"
	kyverno         = "kyverno"
	kyvernoLive     = "kyverno-live"

	cpuOfWebhook   = "cpu-us/bind"
	cpuOfAPIServer = "apiserver-cpu-us/bind"
	// unlearned is the suffix of the variant in which the replicas have just started.
	unlearned = "-unlearned"
)

const (
	overConstant  = " / constant webhook"
	overFollowing = " / constant webhook that caches pending pods"
	overNone      = " / no webhook"
)

func ratio(metric, variant, against string) func([]stat.Sample) []float64 {
	return func(samples []stat.Sample) []float64 { return stat.Ratios(samples, metric, variant, against) }
}

func values(metric, variant string) func([]stat.Sample) []float64 {
	return func(samples []stat.Sample) []float64 { return stat.Values(samples, metric, variant) }
}

// milliseconds converts the values of a metric in seconds.
func milliseconds(metric, variant string) func([]stat.Sample) []float64 {
	return func(samples []stat.Sample) []float64 {
		all := stat.Values(samples, metric, variant)
		for i := range all {
			all[i] *= 1000
		}
		return all
	}
}

// nth selects one round.
func nth(n int, of func([]stat.Sample) []float64) func([]stat.Sample) []float64 {
	return func(samples []stat.Sample) []float64 {
		all := of(samples)
		return all[min(n, len(all)):min(n+1, len(all))]
	}
}

// growth divides the last value of the variant by the first one.
func growth(metric, variant string) func([]stat.Sample) []float64 {
	return func(samples []stat.Sample) []float64 {
		all := stat.Values(samples, metric, variant)
		if len(all) < 2 || all[0] == 0 {
			return nil
		}
		return []float64{all[len(all)-1] / all[0]}
	}
}

// difference subtracts the values of the other variant, round by round.
func difference(metric, variant, other string) func([]stat.Sample) []float64 {
	return func(samples []stat.Sample) []float64 {
		of, minus := stat.Values(samples, metric, variant), stat.Values(samples, metric, other)
		if len(of) != len(minus) {
			return nil
		}
		for i := range of {
			of[i] -= minus[i]
		}
		return of
	}
}

func highest(values []float64) float64 { return stat.Quantile(values, 1) }

// times is the unit of a ratio.
const times = "×"

// table returns all rows, in the order in which they are shown.
func table() []row {
	return append([]row{
		{number: 1, what: "latency of a bind, p50" + overConstant, file: "binds", of: ratio("p50", prebind, constant), most: new(1.03), unit: times},
		{number: 1, what: "latency of a bind, p99" + overConstant, file: "binds", of: ratio("p99", prebind, constant), most: new(1.10), unit: times},
		{number: 1, what: "latency of a bind, p50" + overFollowing, file: "binds", of: ratio("p50", prebind, following), unit: times},
		{number: 1, what: "constant webhook that caches pending pods, p50" + overConstant, file: "binds", of: ratio("p50", following, constant), unit: times},
		{number: 1, what: "latency of a bind, p50" + overNone, file: "binds", of: ratio("p50", prebind, none), unit: times},
		{number: 1, what: "constant webhook, p50" + overNone, file: "binds", of: ratio("p50", constant, none), unit: times},
		{number: 2, what: "binds/s of 16 clients" + overConstant, file: "binds", of: ratio("binds/s", prebind, constant), least: new(0.95), unit: times},
		{number: 2, what: "binds/s of 16 clients" + overFollowing, file: "binds", of: ratio("binds/s", prebind, following), unit: times},
		{number: 2, what: "binds/s of 16 clients" + overNone, file: "binds", of: ratio("binds/s", prebind, none), unit: times},
		{number: 2, what: "constant webhook, binds/s of 16 clients" + overNone, file: "binds", of: ratio("binds/s", constant, none), unit: times},
		{number: 3, what: "CPU time of a review in process / handler that does nothing", file: "admission", of: ratio("cpu-ns/op", prebind, nothing), most: new(1.5), unit: times},
		{number: 3, what: "allocations of a review / handler that does nothing", file: "admission", of: ratio("allocs/op", prebind, nothing), most: new(1.5), unit: times},
		{number: 3, what: "bytes allocated in a review / handler that does nothing", file: "admission", of: ratio("B/op", prebind, nothing), most: new(1.5), unit: times},
		{number: 4, what: "claim bound → pod bound", file: "claims", of: values("ms", prebind), most: new(20.0), unit: " ms"},
		{number: 4, what: "claim bound → pod bound, kube-scheduler without Prebind", file: "claims", of: values("ms", "kube-scheduler"), unit: " ms"},
		{number: 5, what: "live reads per bind", file: "steady", of: values("live reads/bind", prebind), most: new(0.0)},
		{number: 5, what: "writes per bind", file: "steady", of: values("writes/bind", prebind), most: new(0.0)},
		{number: 6, what: "resident memory, 500 nodes, 5,000 running pods", file: "scale", of: nth(0, values("resident MiB", prebind)), unit: " MiB"},
		{number: 6, what: "resident memory, 5,000 nodes, 50,000 running pods", file: "scale", of: nth(1, values("resident MiB", prebind)), unit: " MiB"},
		{number: 6, what: "resident memory, 15,000 nodes, 150,000 running pods", file: "scale", of: nth(2, values("resident MiB", prebind)), unit: " MiB"},
		{number: 6, what: "the same: peak", file: "scale", of: nth(2, values("most resident MiB", prebind)), most: new(1024.0), unit: " MiB"},
		{number: 6, what: "memory with 15,000 nodes / informer of all pods", file: "scale", of: nth(2, ratio("resident MiB", prebind, informer)), most: new(0.25), unit: times},
		{number: 6, what: "the same: time from start to ready", file: "scale", of: nth(2, values("seconds to ready", prebind)), most: new(60.0), unit: " s"},
		{number: 6, what: "the same: processor for updates of nodes", file: "scale", of: nth(2, values("updates of nodes: processor %", prebind)), unit: " %"},
		{number: 6, what: "CPU time per bind, webhook, 15,000 nodes / 500 nodes", file: "scale-binds", of: growth(cpuOfWebhook, prebind), most: new(1.2), unit: times},
		{number: 6, what: "latency of a bind, p50, 15,000 nodes / 500 nodes", file: "scale-binds", of: growth("p50", prebind), most: new(1.2), unit: times},
		{number: 6, what: "the same: no webhook", file: "scale-binds", of: growth("p50", none), unit: times},
		{number: 7, what: "p99 of other requests while 1,000 pods wait / kube-scheduler without Prebind", file: "crowd", of: ratio("other p99", prebind, "kube-scheduler"), most: new(1.2), unit: times},
		{number: 7, what: "calls held by one replica at the same time, maximum", file: "crowd", of: values("holds", prebind), by: highest, most: new(512.0)},
		{number: 7, what: "API server seats of kube-scheduler, median", file: "crowd", of: values("seats p50", prebind), by: highest, most: new(32.0)},
		{number: 7, what: "API server seats of kube-scheduler, maximum", file: "crowd", of: values("seats", prebind), by: highest},
		{number: 8, what: "kube-scheduler with four times the client limit, pods/s" + overNone, file: "scheduler", of: ratio("pods/s", prebind, none), least: new(0.9), unit: times},
		{number: 8, what: "kube-scheduler with four times the client limit, pods/s" + overConstant, file: "scheduler", of: ratio("pods/s", prebind, constant), unit: times},
		{number: 8, what: "the same: new connections to Prebind per bind", file: "scheduler", of: values("connections/bind", prebind)},
		{number: 8, what: "the same: constant webhook, pods/s" + overNone, file: "scheduler", of: ratio("pods/s", constant, none), unit: times},
		{number: 9, what: "30 pods, waits of 2 s to 4 min: claim bound → pod bound, mean", file: "delay", of: values("mean", prebind), most: new(0.1), unit: " s"},
		{number: 9, what: "the same: worst", file: "delay", of: values("worst", prebind), by: highest, most: new(2.5), unit: " s"},
		{number: 9, what: "the same: kube-scheduler without Prebind, mean", file: "delay", of: values("mean", "kube-scheduler"), unit: " s"},
		{number: 9, what: "the same: kube-scheduler without Prebind, worst", file: "delay", of: values("worst", "kube-scheduler"), by: highest, unit: " s"},
		{number: 10, what: "1,000 pods, waits of 40 s: claim bound → pod bound, median", file: "crowd", of: milliseconds("p50", prebind), most: new(1000.0), unit: " ms"},
		{number: 10, what: "the same: p90", file: "crowd", of: milliseconds("p90", prebind), most: new(6000.0), unit: " ms"},
		{number: 10, what: "the same: new replicas, median", file: "crowd", of: milliseconds("p50", prebind+unlearned), most: new(1000.0), unit: " ms"},
		{number: 10, what: "the same: new replicas, p90", file: "crowd", of: milliseconds("p90", prebind+unlearned), most: new(6000.0), unit: " ms"},
		{number: 10, what: "the same: kube-scheduler without Prebind, median", file: "crowd", of: milliseconds("p50", "kube-scheduler"), unit: " ms"},
		{number: 10, what: "the same: kube-scheduler without Prebind, p90", file: "crowd", of: milliseconds("p90", "kube-scheduler"), unit: " ms"},
		{number: 10, what: "the same: extra Bindings", file: "crowd", of: values("repeats", prebind), by: highest, most: new(2000.0)},
		{number: 10, what: "the same: new replicas, extra Bindings", file: "crowd", of: values("repeats", prebind+unlearned), by: highest, most: new(2000.0)},
		{number: 10, what: "the same: FailedScheduling events", file: "crowd", of: values("FailedScheduling", prebind), by: highest, most: new(0.0)},
		{number: 10, what: "1,000 pods, scheduler not exempt by the FlowSchema: median", file: "crowd-seats", of: milliseconds("p50", prebind), most: new(1000.0), unit: " ms"},
		{number: 10, what: "scheduler not exempt: p90", file: "crowd-seats", of: milliseconds("p90", prebind), most: new(6000.0), unit: " ms"},
		{number: 10, what: "scheduler not exempt: new replicas, median", file: "crowd-seats", of: milliseconds("p50", prebind+unlearned), most: new(1000.0), unit: " ms"},
		{number: 10, what: "scheduler not exempt: new replicas, p90", file: "crowd-seats", of: milliseconds("p90", prebind+unlearned), most: new(6000.0), unit: " ms"},
		{number: 10, what: "scheduler not exempt: extra Bindings", file: "crowd-seats", of: values("repeats", prebind), by: highest, most: new(2000.0)},
		{number: 10, what: "scheduler not exempt: new replicas, extra Bindings", file: "crowd-seats", of: values("repeats", prebind+unlearned), by: highest, most: new(2000.0)},
		{number: 10, what: "scheduler not exempt: FailedScheduling events", file: "crowd-seats", of: values("FailedScheduling", prebind+unlearned), by: highest, most: new(0.0)},
		{number: 11, what: "kill of a replica that holds 60 calls: claim bound → pod bound, worst", file: "lost", of: values("worst", "kill"), by: highest, most: new(10.0), unit: " s"},
		{number: 11, what: "the same: mean", file: "lost", of: values("mean", "kill"), unit: " s"},
		{number: 11, what: "rolling restart with 60 held calls: FailedScheduling events", file: "lost", of: values("FailedScheduling", "roll"), by: highest, most: new(0.0)},
		{number: 11, what: "the same: claim bound → pod bound, worst", file: "lost", of: values("worst", "roll"), by: highest, unit: " s"},
		{number: 12, what: "CPU time per bind, webhook" + overConstant, file: "cpu", of: ratio(cpuOfWebhook, prebind, constant), most: new(1.45), unit: times},
		{number: 12, what: "CPU time per bind, API server" + overConstant, file: "cpu", of: ratio(cpuOfAPIServer, prebind, constant), most: new(1.05), unit: times},
		{number: 12, what: "CPU time per bind, webhook" + overFollowing, file: "cpu", of: ratio(cpuOfWebhook, prebind, following), unit: times},
		{number: 12, what: "CPU time per bind, API server" + overFollowing, file: "cpu", of: ratio(cpuOfAPIServer, prebind, following), unit: times},
		{number: 12, what: "constant webhook that caches pending pods, CPU time per bind" + overConstant, file: "cpu", of: ratio(cpuOfWebhook, following, constant), unit: times},
		{number: 13, what: "latency of a bind, p50, node-ready, start-limit and announce on / off", file: "node-plugins", of: ratio("p50", nodePlugins, prebind), most: new(1.03), unit: times},
		{number: 13, what: "the same: p99", file: "node-plugins", of: ratio("p99", nodePlugins, prebind), unit: times},
		{number: 13, what: "the same: binds/s of 16 clients", file: "node-plugins", of: ratio("binds/s", nodePlugins, prebind), unit: times},
		{number: 13, what: "the same: CPU time per bind, webhook", file: "node-plugins", of: ratio(cpuOfWebhook, nodePlugins, prebind), unit: times},
		{number: 14, what: "latency of a bind, p50, no BindPolicy / plugin policy off", file: "policies", of: ratio("p50", policies, prebind), most: new(1.02), unit: times},
		{number: 14, what: "latency of a bind, p50, 200 BindPolicies that do not match / plugin policy off", file: "policies", of: ratio("p50", policiesUnmatched, prebind), most: new(1.02), unit: times},
		{number: 14, what: "latency of a bind, p50, five BindPolicies that match / plugin policy off", file: "policies", of: ratio("p50", policiesMatching, prebind), most: new(1.1), unit: times},
		{number: 14, what: "the same: p99", file: "policies", of: ratio("p99", policiesMatching, prebind), unit: times},
		{number: 14, what: "the same: binds/s of 16 clients", file: "policies", of: ratio("binds/s", policiesMatching, prebind), unit: times},
		{number: 14, what: "the same: CPU time per bind, webhook", file: "policies", of: ratio(cpuOfWebhook, policiesMatching, prebind), unit: times},
		{number: 14, what: "the same: CPU time per bind, API server", file: "policies", of: ratio(cpuOfAPIServer, policiesMatching, prebind), unit: times},
		{number: 14, what: "latency of a bind, p50, plugin policy off" + overConstant, file: "policies", of: ratio("p50", prebind, constant), unit: times},
		{number: 15, what: "CSINode that a BindPolicy waits for is changed → pod bound, median", file: "policies", of: values("wake p50", policies), most: new(50.0), unit: " ms"},
		{number: 15, what: "CSINode that a BindPolicy waits for is changed → pod bound, worst", file: "policies", of: values("wake worst", policies), by: highest, most: new(50.0), unit: " ms"},
		{number: 16, what: "200 BindPolicies, 10,000 watched CSINodes: memory in use, plugin policy on − off", file: "policies", of: difference("live heap MiB", policiesUnmatched, prebind), most: new(60.0), unit: " MiB"},
		{number: 17, what: "pod created → bound, wait of 10 s for a volume and of 10 s for a device / for the volume alone", file: "twowaits", of: ratio("seconds", prebind, "one wait"), most: new(1.1), unit: times},
		{number: 17, what: "the same: kube-scheduler without Prebind / Prebind for the volume alone", file: "twowaits", of: ratio("seconds", "kube-scheduler", "one wait"), unit: times},
	}, slices.Concat(growthRows(), neighborRows(), openRows())...)
}

// growthRows returns the rows of cost against size. They compare a cluster with one that has ten times as many objects of one kind.
func growthRows() []row {
	var rows []row
	add := func(what, file, operation string, metrics ...string) {
		for _, metric := range metrics {
			rows = append(rows, row{
				number: 18, what: what + ": " + metric, file: "growth-" + file, of: growth(operation+": "+metric, prebind), most: new(1.5), unit: times,
			})
		}
	}
	const cpu, p50, allocated, requests = "CPU ms", "p50 ms", "allocated KiB", "API requests"
	add("bind, 20,000 / 2,000 free local volumes of the class", "static-local", "bind", cpu, "PreFlight ms", p50, allocated)
	add("bind, 20,000 / 2,000 free shared volumes of the class", "static-shared", "bind", cpu, "PreFlight ms", p50, allocated)
	add("device grant, 5,000 / 500 nodes with device records", "devices", "bind", cpu, "PreFlight ms", "PreBind ms", p50, allocated, requests)
	add("10 s of sweeps, 5,000 / 500 device records", "devices", "10 s at rest", cpu, allocated, requests)
	add("start of a replica, 5,000 / 500 forged marks", "marks", "start until rest", cpu, requests)
	add("10 s of sweeps, 5,000 / 500 forged marks", "marks", "10 s after it", allocated, requests)
	return rows
}

// neighborRows returns the rows of other products. The first one is the cheapest that copies the zone of the node.
func neighborRows() []row {
	var rows []row
	for _, other := range []struct {
		variant, name string
		most, least   *float64
	}{
		{kyverno, "Kyverno, MutatingPolicy with GlobalContextEntry", new(1.0), new(1.0)},
		{kyvernoLive, "Kyverno, ClusterPolicy with apiCall", nil, nil},
		{admissionPolicy, "MutatingAdmissionPolicy that adds one annotation", nil, nil},
	} {
		const file, of = "neighbors", "Prebind / "
		rows = append(rows,
			row{number: 19, what: other.name + ": latency of a bind, p50", file: file, of: values("p50", other.variant), unit: " ms"},
			row{number: 19, what: other.name + ": latency of a bind, p99", file: file, of: values("p99", other.variant), unit: " ms"},
			row{number: 19, what: other.name + ": binds/s of 16 clients", file: file, of: values("binds/s", other.variant)},
			row{number: 19, what: other.name + ": requests to the API server per bind, more than without a webhook", file: file,
				of: difference("requests/bind", other.variant, none)},
			row{number: 19, what: "p50, " + of + other.name, file: file, of: ratio("p50", prebind, other.variant), most: other.most, unit: times},
			row{number: 19, what: "p99, " + of + other.name, file: file, of: ratio("p99", prebind, other.variant), most: other.most, unit: times},
			row{number: 19, what: "binds/s, " + of + other.name, file: file, of: ratio("binds/s", prebind, other.variant), least: other.least, unit: times},
			row{number: 19, what: "CPU time per bind, API server, " + of + other.name, file: file, of: ratio(cpuOfAPIServer, prebind, other.variant), most: other.most, unit: times},
		)
		if other.variant != admissionPolicy {
			rows = append(rows,
				row{number: 19, what: "CPU time per bind, webhook, " + of + other.name, file: file, of: ratio(cpuOfWebhook, prebind, other.variant), most: other.most, unit: times},
				row{number: 19, what: "resident memory, " + of + other.name, file: file, of: ratio("resident MiB", prebind, other.variant), most: other.most, unit: times},
			)
		}
	}
	return append(rows, row{number: 19, what: "Prebind: requests to the API server per bind, more than without a webhook", file: "neighbors",
		of: difference("requests/bind", prebind, none)})
}

// openRows returns the rows of binds that arrive at a fixed rate.
func openRows() []row {
	const file = "openloop"
	rows := []row{
		{number: 20, what: "highest rate of arriving binds with a p99 below 100 ms" + overConstant, file: file, of: ratio("rate", prebind, constant), least: new(0.95), unit: times},
		{number: 20, what: "the same" + overNone, file: file, of: ratio("rate", prebind, none), unit: times},
		{number: 20, what: "the same: Prebind", file: file, of: values("rate", prebind), unit: " binds/s"},
	}
	for _, load := range []struct{ variant, name string }{
		{"steady", "half of that rate, two replicas"},
		{"waits", "half of that rate, a tenth of the binds waits 5 s: others"},
		{"kill", "half of that rate, one of two replicas killed"},
		{"roll", "half of that rate, rolling restart"},
	} {
		rows = append(rows,
			row{number: 20, what: load.name + ", p99", file: file, of: values("p99", load.variant), unit: " ms"},
			row{number: 20, what: load.name + ", failed binds", file: file, of: values("errors %", load.variant), unit: " %"},
		)
	}
	const burst = "burst"
	return append(rows,
		row{number: 21, what: "2,000 binds at once of new pods, binds/s" + overConstant, file: burst, of: ratio("binds/s", prebind, constant), least: new(0.9), unit: times},
		row{number: 21, what: "the same" + overFollowing, file: burst, of: ratio("binds/s", prebind, following), unit: times},
		row{number: 21, what: "the same: CPU time per bind, API server" + overConstant, file: burst, of: ratio(cpuOfAPIServer, prebind, constant), unit: times},
		row{number: 21, what: "the same: failed binds", file: burst, of: values("errors %", prebind), by: highest, most: new(0.0), unit: " %"},
		row{number: 22, what: "three API servers, three replicas, 16 clients: binds of the busiest replica", file: "balance", of: values("busiest %", "3 replicas"), unit: " %"},
		row{number: 22, what: "the same, after a fourth replica has been added: binds of that replica", file: "balance", of: values("fourth %", "4 replicas"), unit: " %"},
	)
}

// result is a row with its values.
type result struct {
	row
	// values are those of all runs, and value is their result.
	values []float64
	value  float64
	// runs are the results of the runs that have values.
	runs []float64
}

// result returns false if there are no samples.
func (r row) result(data []samples) (result, bool) {
	by := r.by
	if by == nil {
		by = stat.Median
	}
	found := result{row: r}
	for _, run := range data {
		if values := r.of(run[r.file]); len(values) > 0 {
			found.values = slices.Concat(found.values, values)
			found.runs = append(found.runs, by(values))
		}
	}
	if len(found.values) == 0 {
		return found, false
	}
	found.value = by(found.values)
	return found, true
}

// The stated range: each run differs from the result by less than this factor. Absolute values follow the speed of the machine.
const (
	spreadOfRatios   = 1.5
	spreadOfAbsolute = 3.0
)

// repeatable returns yes if the results of several runs are within the stated range or look the same, no if not, and an empty string for
// one run.
func (r result) repeatable() string {
	factor := spreadOfAbsolute
	if r.unit == times && !strings.Contains(r.what, "p99") {
		factor = spreadOfRatios
	}
	lowest, highest := slices.Min(r.runs), slices.Max(r.runs)
	switch {
	case len(r.runs) < 2:
		return ""
	case highest < factor*r.value && r.value < factor*lowest, highest-lowest < 0.02:
		return "yes"
	default:
		return "no"
	}
}

// eachRun returns the results of the runs.
func (r result) eachRun() string {
	var each []string
	for _, value := range r.runs {
		each = append(each, number(value))
	}
	return list(each)
}

// list joins the items.
func list(items []string) string {
	if len(items) < 2 {
		return strings.Join(items, "")
	}
	return strings.Join(items[:len(items)-1], ", ") + " and " + items[len(items)-1]
}

// judge returns yes or no, or an empty string without a target.
func (r row) judge(value float64) string {
	switch {
	case r.most == nil && r.least == nil:
		return ""
	case r.most != nil && value > *r.most, r.least != nil && value < *r.least:
		return "no"
	default:
		return "yes"
	}
}

func (r row) target() string {
	switch {
	case r.most != nil:
		return "≤ " + number(*r.most) + r.unit
	case r.least != nil:
		return "≥ " + number(*r.least) + r.unit
	default:
		return "–"
	}
}

// fields returns the cells of the row.
func (r result) fields() []string {
	spread := "–"
	if len(r.values) > 1 {
		spread = number(slices.Min(r.values)) + " to " + number(slices.Max(r.values))
	}
	return []string{
		strconv.Itoa(r.number), r.what, r.target(), number(r.value) + r.unit, spread, strconv.Itoa(len(r.values)), r.eachRun(), r.judge(r.value), r.repeatable(),
	}
}

// number formats integers without a fraction and other values with two decimal places.
func number(v float64) string {
	if v == float64(int64(v)) {
		return fmt.Sprintf("%d", int64(v))
	}
	return fmt.Sprintf("%.2f", v)
}
