// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/prebind/prebind/internal/work"
	"github.com/prebind/prebind/webhook"
)

// checkWorkers checks that pods that wait do not delay the bind of another pod.
func checkWorkers(ctx context.Context, t *trial) string {
	var waiting []*corev1.Pod
	for i := range waiters {
		waiting = append(waiting, t.creates(ctx, fmt.Sprintf("waiter-%d", i), waits))
	}
	t.answered(ctx, waiting[0], work.ReasonWaiting)
	began := time.Now()
	t.bound(ctx, t.creates(ctx, "workers"), fmt.Sprintf("While %d pods wait, other pods must be bound. Bind each pod in its own goroutine, use more bind workers, or repeat waiting Bindings from a delayed queue. "+
		"If your scheduler already uses goroutines, look for a limit of binds in progress, for a lock that it holds while it binds, and for the rate limit of its client (QPS).", waiters))
	detail := fmt.Sprintf("while %d pods waited, another pod was bound in %s", waiters, seconds(time.Since(began)))
	t.deletes(ctx, waiting...)
	return detail
}

// checkBurst checks that the scheduler binds many pods, each once.
func checkBurst(ctx context.Context, t *trial) string {
	before, counted := t.calls(ctx)
	pods, detail := t.bindsMany(ctx)
	missing := slices.DeleteFunc(pods, func(pod corev1.Pod) bool { return len(ofNode(pod.Annotations)) > 0 })
	if len(missing) > 0 && len(t.announced(ctx, t.nodes[0].Name)) > 0 {
		t.violates("Bind each pod with a Binding.", "%d of %d pods lack the annotations of Prebind, such as %s", len(missing), t.Burst, missing[0].Name)
	}
	if after, ok := t.calls(ctx); ok && counted {
		return detail + fmt.Sprintf("; %.2f calls of Prebind per pod in the whole cluster", float64(after-before)/float64(t.Burst))
	}
	return detail + "; calls per pod unknown without permission to get /metrics of the API server"
}

// bindsMany creates the pods of the burst, and waits until they are bound.
func (t *trial) bindsMany(ctx context.Context) (pods []corev1.Pod, detail string) {
	began := time.Now()
	nodes := map[types.UID]string{}
	for i := range t.Burst {
		nodes[t.creates(ctx, fmt.Sprintf("burst-%d", i), label(burstLabel, "yes")).UID] = ""
	}
	bound, last := 0, ""
	if t.until(ctx, t.Timeout, func(ctx context.Context) (bool, error) {
		list, err := t.client.CoreV1().Pods(t.ns.Name).List(ctx, metav1.ListOptions{LabelSelector: burstLabel + "=yes"})
		if err != nil {
			return false, err
		}
		pods = list.Items
		for _, pod := range pods {
			node, ours := nodes[pod.UID]
			switch {
			case !ours:
				t.violates("Bind with a Binding. Do not create pods again with spec.nodeName.", "pod %s was replaced by another pod", pod.Name)
			case node == "" && pod.Spec.NodeName != "":
				bound, last = bound+1, pod.Name
				nodes[pod.UID] = pod.Spec.NodeName
			case node != pod.Spec.NodeName:
				t.violates("Bind each pod once.", "pod %s was bound to %s and to %s", pod.Name, node, pod.Spec.NodeName)
			}
		}
		return bound == t.Burst, nil
	}) {
		took := time.Since(began)
		return pods, fmt.Sprintf("%d pods bound in %s (%.0f per second), the last was %s", bound, seconds(took), float64(bound)/took.Seconds(), last)
	}
	late := ""
	if i := slices.IndexFunc(pods, func(pod corev1.Pod) bool { return pod.Spec.NodeName == "" }); i >= 0 {
		late = fmt.Sprintf("; pod %s was not bound%s", pods[i].Name, t.why(ctx, &pods[i]))
	}
	t.violates("Check the rate limit of the client (QPS) and the number of bind workers, and that the nodes have room for the pods.",
		"%d of %d pods were bound within %s%s", bound, t.Burst, t.Timeout, late)
	return nil, ""
}

// calls returns the number of calls of Prebind that the API server has made. It is false if that is unknown.
func (t *trial) calls(ctx context.Context) (int, bool) {
	metrics, err := t.client.CoreV1().RESTClient().Get().AbsPath("/metrics").Do(ctx).Raw()
	return countCalls(string(metrics)), err == nil
}

// countCalls adds up the calls of Prebind in the metrics of the API server.
func countCalls(metrics string) int {
	sum := 0.0
	for line := range strings.Lines(metrics) {
		if strings.HasPrefix(line, "apiserver_admission_webhook_admission_duration_seconds_count{") && strings.Contains(line, `name="`+webhook.Name+`"`) {
			value, _ := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndex(line, " ")+1:]), 64)
			sum += value
		}
	}
	return int(sum)
}
