// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/prebind/prebind/test/bench/stat"
)

// processors is the number of processors of the machine.
const processors = 2

// figures returns the table of absolute figures. Each is compared with a cluster without Prebind.
func figures(data map[string][]stat.Sample) string {
	median := func(file, metric, variant string) float64 {
		return stat.Median(stat.Values(data[file], metric, variant))
	}
	memory := func(variant string) float64 {
		return stat.Quantile(last(values("resident MiB", variant))(data["scale"]), 1)
	}
	latency, bare := median("binds", "p50", prebind), median("binds", "p50", none)
	return line("Figure", "Prebind", "For comparison") + "|---|---|---|\n" +
		line("Added latency of a bind, median", fmt.Sprintf("%.1f ms", latency-bare), fmt.Sprintf("a bind without a webhook: %.1f ms", bare)) +
		line("CPU time per bind", fmt.Sprintf("%.2f ms", median("cpu", cpuOfWebhook, prebind)/1000),
			fmt.Sprintf("a webhook that adds one annotation: %.2f ms", median("cpu", cpuOfWebhook, constant)/1000)) +
		line("Memory of a replica, 5,000 nodes and 50,000 running pods", fmt.Sprintf("%.0f MiB", memory(prebind)),
			fmt.Sprintf("an informer of all pods: %.0f MiB", memory(informer))) +
		line("Binds per second and processor, with the control plane on the same processors",
			fmt.Sprintf("%.0f", median("binds", "binds/s", prebind)/processors), fmt.Sprintf("without a webhook: %.0f", median("binds", "binds/s", none)/processors)) +
		line("Delay from claim bound to pod bound, median", fmt.Sprintf("%.0f ms", median("claims", "ms", prebind)),
			fmt.Sprintf("kube-scheduler without Prebind: %.0f ms", median("claims", "ms", "kube-scheduler")))
}
