// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/prebind/prebind/test/bench/stat"
)

// processors is the number of processors of the machine.
const processors = 2

// figures returns the list of absolute figures. Each is compared with a cluster without Prebind.
func figures(data map[string][]stat.Sample) string {
	median := func(file, metric, variant string) float64 {
		return stat.Median(stat.Values(data[file], metric, variant))
	}
	memory := func(variant string) float64 {
		return stat.Quantile(last(values("resident MiB", variant))(data["scale"]), 1)
	}
	bare := median("binds", "p50", none)
	return fmt.Sprintf("- Added latency of a bind, median: **%.1f ms** (a bind without a webhook: %.1f ms)\n", median("binds", "p50", prebind)-bare, bare) +
		fmt.Sprintf("- CPU time per bind: **%.2f ms** (a webhook that adds one annotation: %.2f ms)\n",
			median("cpu", cpuOfWebhook, prebind)/1000, median("cpu", cpuOfWebhook, constant)/1000) +
		fmt.Sprintf("- Memory of a replica, 5,000 nodes and 50,000 running pods: **%.0f MiB** (an informer of all pods: %.0f MiB)\n",
			memory(prebind), memory(informer)) +
		fmt.Sprintf("- Binds per second and processor, with the control plane on the same processors: **%.0f** (without a webhook: %.0f)\n",
			median("binds", "binds/s", prebind)/processors, median("binds", "binds/s", none)/processors) +
		fmt.Sprintf("- Delay from claim bound to pod bound, median: **%.0f ms** (kube-scheduler without Prebind: %.0f ms)\n",
			median("claims", "ms", prebind), median("claims", "ms", "kube-scheduler")) +
		fmt.Sprintf("\nWaits run at the same time: a pod that waits 10 s for a volume and 10 s for a device is bound after **%.1f s**, not 20 s\n"+
			"(kube-scheduler without Prebind: %.1f s).\n", median("twowaits", "seconds", prebind), median("twowaits", "seconds", "kube-scheduler"))
}
