// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prebind/prebind/cmd/kubectl-prebind/internal/dryrun"
	"github.com/prebind/prebind/internal/work"
)

// checkRefused checks that the scheduler tries again after a refusal, with backoff, and binds the pods to another node.
func checkRefused(ctx context.Context, t *trial) string {
	var devices []string
	for i := range refused {
		devices = append(devices, fmt.Sprintf("%s-%d", t.ns.Name, i))
	}
	nodes := t.nodes[:2]
	holders := map[string]*corev1.Pod{}
	for i, n := range nodes {
		holder := t.creates(ctx, fmt.Sprintf("holder-%d", i), unscheduled, label(roleLabel, "holder"), annotation(deviceAnnotation, strings.Join(devices, ",")))
		t.must(t.client.CoreV1().Pods(t.ns.Name).Bind(ctx, dryrun.Binding(holder, n.Name, nil), metav1.CreateOptions{}))
		holders[n.Name] = holder
	}
	var pods []*corev1.Pod
	for i, id := range devices {
		pods = append(pods, t.creates(ctx, fmt.Sprintf("refused-%d", i), annotation(deviceAnnotation, id), onNodes(nodes, map[string]string{roleLabel: "holder"})))
	}
	refusals := t.refusals(ctx, pods[0])
	for _, pod := range pods[1:] {
		t.answered(ctx, pod, work.ReasonRefused)
	}
	free := nodes[0].Name
	if free == refusals[len(refusals)-1].node {
		free = nodes[1].Name
	}
	t.deletes(ctx, holders[free])
	released := time.Now()
	for _, pod := range pods {
		t.bound(ctx, pod, adviceAgain+" Try other nodes too: node "+free+" was free.")
	}
	return fmt.Sprintf("refused on %s (403) with backoff, then all %d pods were bound %s after their devices were free on %s",
		strings.Join(nodesOf(refusals), " and "), refused, seconds(time.Since(released)), free)
}

// checkInvalid checks that the scheduler does not repeat a Binding with an invalid annotation in a loop.
func checkInvalid(ctx context.Context, t *trial) string {
	pod := t.creates(ctx, "invalid", annotation(timeoutAnnotation, "soon"))
	t.refusals(ctx, pod)
	return "refused as invalid (422), and not repeated in a loop"
}

// checkInternal checks that the scheduler tries a pod again after an internal error, on the only node that the pod allows. A webhook
// that the API server cannot call makes the error after Prebind has allowed the bind.
func checkInternal(ctx context.Context, t *trial) string {
	t.apply(ctx, "internal.yaml", values{})
	probe := t.creates(ctx, "internal-probe", unscheduled)
	if !t.applied(ctx, probe, apierrors.IsInternalError) {
		t.end(skip("within %s, the API server did not apply a ValidatingWebhookConfiguration", appliedTime))
	}
	id := t.ns.Name + "-internal"
	pod := t.creates(ctx, "internal", onNode(t.nodes[0]), annotation(deviceAnnotation, id))
	// Prebind reserves the device with the first Binding.
	t.posted(ctx, pod, func(ctx context.Context) (bool, error) { return t.deviceHeld(ctx, t.nodes[0].Name, id) })
	t.staysUnbound(ctx, pod, settles)
	t.must(t.client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Delete(ctx, t.ns.Name+".conformance.prebind.dev", metav1.DeleteOptions{}))
	ended := time.Now()
	t.bound(ctx, pod, "After an internal error, release the node and schedule the pod again, with backoff. Do not exclude the node: it is rarely the cause.")
	return fmt.Sprintf("bound %s after the end of the errors (500)", seconds(time.Since(ended)))
}

// checkStale checks that a bind does not apply to a later pod of the same name.
func checkStale(ctx context.Context, t *trial) string {
	other := t.nodes[len(t.nodes)-1]
	old := t.creates(ctx, "stale", waits, onNode(t.nodes[0]))
	t.answered(ctx, old, work.ReasonWaiting)
	t.deletes(ctx, old)
	created := time.Now()
	pod := t.creates(ctx, "stale", onNode(other))
	pod = t.bound(ctx, pod, "When a pod is deleted, drop its bind. Key pods by UID, not by name: schedule a new pod of the same name like any other pod. A stale Binding is answered with 409: do not repeat it.")
	t.on(pod, other.Name, "the deleted pod of the same name required the other node", adviceUID)
	if pod.Annotations[expectAnnotation] != "" {
		t.violates("Build the Binding from the pod that you schedule.", "the new pod has annotations of the deleted pod's Binding")
	}
	return fmt.Sprintf("the new pod was bound to %s %s after the deletion", pod.Spec.NodeName, seconds(time.Since(created)))
}
