// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/prebind/prebind/webhook"
)

// burstLabel marks the pods of the burst.
const burstLabel = "conformance.prebind.dev/burst"

// checkBurst checks that the scheduler binds many pods, each once.
func (s *session) checkBurst(ctx context.Context) (string, error) {
	before, counted := s.calls(ctx)
	pods, detail, err := s.bindMany(ctx)
	if err != nil {
		return "", err
	}
	missing := slices.DeleteFunc(pods, func(pod corev1.Pod) bool { return len(ofNode(pod.Annotations)) > 0 })
	if x, err := s.explain(ctx, s.nodes[0].Name, nil); err == nil && x != nil && len(ofNode(x.Annotations)) > 0 && len(missing) > 0 {
		return "", &violation{what: fmt.Sprintf("%d of %d pods lack the annotations of Prebind, such as %s", len(missing), s.Burst, missing[0].Name), advice: "Bind each pod with a Binding."}
	}
	if after, ok := s.calls(ctx); ok && counted {
		return detail + fmt.Sprintf("; %.2f calls of Prebind per pod in the whole cluster", float64(after-before)/float64(s.Burst)), nil
	}
	return detail + "; calls per pod unknown without permission to get /metrics of the API server", nil
}

// bindMany creates the pods of the burst, and waits until they are bound. It returns them, and the times that it took.
func (s *session) bindMany(ctx context.Context) (pods []corev1.Pod, detail string, err error) {
	created := sets.New[types.UID]()
	began := time.Now()
	for i := range s.Burst {
		pod, err := s.create(ctx, s.pod(fmt.Sprintf("burst-%d", i), label(burstLabel, "yes")))
		if err != nil {
			return nil, "", err
		}
		created.Insert(pod.UID)
	}
	nodes := map[types.UID]string{}
	var seen []boundPod
	err = s.until(ctx, s.Timeout, func(ctx context.Context) (bool, error) {
		var err error
		if pods, err = s.pods(ctx, burstLabel+"=yes"); err != nil {
			return false, err
		}
		for _, pod := range pods {
			if !created.Has(pod.UID) {
				return false, &violation{what: fmt.Sprintf("pod %s was replaced by another pod", pod.Name), advice: "Bind with a Binding. Do not create pods again with spec.nodeName."}
			}
			if pod.Spec.NodeName == "" {
				continue
			}
			if earlier, ok := nodes[pod.UID]; ok && earlier != pod.Spec.NodeName {
				return false, &violation{what: fmt.Sprintf("pod %s was bound to %s and to %s", pod.Name, earlier, pod.Spec.NodeName), advice: "Bind each pod once."}
			}
			if _, ok := nodes[pod.UID]; !ok {
				seen = append(seen, boundPod{name: pod.Name, after: time.Since(began)})
			}
			nodes[pod.UID] = pod.Spec.NodeName
		}
		return len(nodes) == s.Burst, nil
	})
	if errors.Is(err, errTime) {
		what := fmt.Sprintf("%d of %d pods were bound within %s%s", len(nodes), s.Burst, s.Timeout, paceOf(seen, s.Burst))
		if i := slices.IndexFunc(pods, func(pod corev1.Pod) bool { return pod.Spec.NodeName == "" }); i >= 0 {
			what += fmt.Sprintf("; pod %s was not bound%s", pods[i].Name, s.eventsOf(ctx, &pods[i]))
		}
		return nil, "", &violation{what: what, advice: "Check the rate limit of the client (QPS) and the number of bind workers, and that the nodes have room for the pods."}
	}
	if err != nil {
		return nil, "", err
	}
	return pods, fmt.Sprintf("%d pods bound%s", s.Burst, paceOf(seen, s.Burst)), nil
}

// boundPod is a pod of the burst, with the time until it was bound.
type boundPod struct {
	name  string
	after time.Duration
}

// paceOf returns when 90 % of the pods of the burst were bound, and when the last one, as the end of a sentence. The pods
// are in the order in which they were bound. It is empty if fewer were bound.
func paceOf(seen []boundPod, burst int) string {
	most := (9*burst + 9) / 10
	if len(seen) < most {
		return ""
	}
	after := seen[most-1].after
	text := fmt.Sprintf(", 90 %% in %s (%.0f per second)", seconds(after), float64(most)/after.Seconds())
	if len(seen) == burst {
		last := seen[len(seen)-1]
		text += fmt.Sprintf(", the last (%s) after %s", last.name, seconds(last.after))
	}
	return text
}

// calls returns the number of calls of Prebind that the API server has made. It is false if that is unknown.
func (s *session) calls(ctx context.Context) (int, bool) {
	text, err := s.client.CoreV1().RESTClient().Get().AbsPath("/metrics").Do(ctx).Raw()
	if err != nil {
		return 0, false
	}
	return countCalls(string(text)), true
}

// countCalls adds up the calls of Prebind in the metrics of the API server.
func countCalls(metrics string) int {
	const name = "apiserver_admission_webhook_admission_duration_seconds_count{"
	sum := 0.0
	for line := range strings.Lines(metrics) {
		if !strings.HasPrefix(line, name) || !strings.Contains(line, `name="`+webhook.Name+`"`) {
			continue
		}
		if fields := strings.Fields(line); len(fields) > 1 {
			value, _ := strconv.ParseFloat(fields[len(fields)-1], 64)
			sum += value
		}
	}
	return int(sum)
}
