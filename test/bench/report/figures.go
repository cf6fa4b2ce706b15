// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/prebind/prebind/test/bench/stat"
)

// processors is the number of processors of the machine.
const processors = 2

// figures returns the list of absolute figures, each compared with a cluster without Prebind, and a chart. Several numbers are those
// of several runs.
func figures(data []samples) string {
	each := func(format, file string, of func(median func(metric, variant string) float64) float64) string {
		var found []string
		for _, run := range data {
			if len(run[file]) > 0 {
				found = append(found, fmt.Sprintf(format, of(func(metric, variant string) float64 {
					return stat.Median(stat.Values(run[file], metric, variant))
				})))
			}
		}
		return list(slices.Compact(found))
	}
	one := func(format, file, metric, variant string, divisor float64) string {
		return each(format, file, func(median func(metric, variant string) float64) float64 { return median(metric, variant) / divisor })
	}
	memory := func(variant string) string {
		var ofSize [3][]float64
		for _, run := range data {
			for i, mebibytes := range stat.Values(run["scale"], "resident MiB", variant) {
				ofSize[i] = append(ofSize[i], mebibytes)
			}
		}
		var found []string
		for _, all := range ofSize {
			if len(all) > 0 {
				found = append(found, fmt.Sprintf("%.0f to %.0f", slices.Min(all), slices.Max(all)))
			}
		}
		return list(found)
	}
	added := each("%.1f", "binds", func(median func(metric, variant string) float64) float64 {
		return median("p50", prebind) - median("p50", none)
	})
	return fmt.Sprintf("- Added latency of a bind, median: **%s ms** (a bind without a webhook: %s ms)\n", added, one("%.1f", "binds", "p50", none, 1)) +
		fmt.Sprintf("- CPU time per bind: **%s ms** (a webhook that adds one annotation: %s ms)\n",
			one("%.2f", "cpu", cpuOfWebhook, prebind, 1000), one("%.2f", "cpu", cpuOfWebhook, constant, 1000)) +
		fmt.Sprintf("- Memory of a replica, 500, 5,000 and 15,000 nodes: **%s MiB** (an informer of all pods: %s MiB)\n",
			memory(prebind), memory(informer)) +
		fmt.Sprintf("- Binds per second and processor, with the control plane on the same processors: **%s** (without a webhook: %s)\n",
			one("%.0f", "binds", "binds/s", prebind, processors), one("%.0f", "binds", "binds/s", none, processors)) +
		fmt.Sprintf("- Delay from claim bound to pod bound, median: **%s ms** (kube-scheduler without Prebind: %s ms)\n",
			one("%.0f", "claims", "ms", prebind, 1), one("%.0f", "claims", "ms", "kube-scheduler", 1)) +
		"\n" + chart(last(data, "binds")) +
		fmt.Sprintf("\nWaits run at the same time: a pod that waits 10 s for a volume and 10 s for a device is bound after **%s s**, not 20 s\n"+
			"(kube-scheduler without Prebind: %s s).\n", one("%.1f", "twowaits", "seconds", prebind, 1), one("%.1f", "twowaits", "seconds", "kube-scheduler", 1))
}

// chart returns a Mermaid chart of the median latency of a bind with each webhook.
func chart(binds []stat.Sample) string {
	var names, bars []string
	highest := 0.0
	for _, webhook := range []struct{ variant, name string }{
		{none, "none"}, {nothing, "does nothing"}, {constant, "constant"}, {following, "constant, caches pods"}, {prebind, "Prebind"},
	} {
		p50 := stat.Median(stat.Values(binds, "p50", webhook.variant))
		names = append(names, fmt.Sprintf("\"%s: %.1f\"", webhook.name, p50))
		bars = append(bars, fmt.Sprintf("%.2f", p50))
		highest = max(highest, p50)
	}
	return "```mermaid\nxychart-beta horizontal\n" +
		"    title \"Median latency of a bind, by webhook\"\n" +
		"    x-axis [" + strings.Join(names, ", ") + "]\n" +
		fmt.Sprintf("    y-axis \"ms\" 0 --> %.0f\n", math.Ceil(highest)) +
		"    bar [" + strings.Join(bars, ", ") + "]\n```\n"
}

// neighbors returns a table of products that can change a Binding.
func neighbors(samples []stat.Sample) string {
	var rows strings.Builder
	rows.WriteString("\n| | p50 (ms) | binds/s | CPU (ms) | memory (MiB) | requests |\n|---|---|---|---|---|---|\n")
	for _, product := range []struct{ variant, name string }{
		{none, "None"}, {constant, "Constant webhook"}, {prebind, "Prebind"}, {admissionPolicy, "MutatingAdmissionPolicy, constant"},
		{kyverno, "Kyverno, cache"}, {kyvernoLive, "Kyverno, live read"},
	} {
		median := func(metric string) float64 { return stat.Median(stat.Values(samples, metric, product.variant)) }
		fmt.Fprintf(&rows, "| %s | %.1f | %.0f | %.2f | %.0f | %.1f |\n", product.name,
			median("p50"), median("binds/s"), median(cpuOfWebhook)/1000, median("resident MiB"), median("requests/bind"))
	}
	rows.WriteString("\n")
	return rows.String()
}
