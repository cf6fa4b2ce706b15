// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/cmd/kubectl-prebind/internal/dryrun"
	"github.com/prebind/prebind/internal/work"
)

// checkWait checks that the scheduler repeats a Binding that has to wait, with the same annotations, and stays on the node.
func checkWait(ctx context.Context, t *trial) string {
	pod := t.creates(ctx, "wait", waits)
	began := time.Now()
	t.answered(ctx, work.ReasonWaiting, pod)
	t.staysUnbound(ctx, pod, t.Wait-time.Since(began))
	waited := time.Since(began)
	warnings := t.warnings(ctx, pod)
	answers, err := t.answers(ctx, pod, work.ReasonWaiting)
	t.must(err)
	nodes := sets.List(sets.New(answers...))
	if len(nodes) > 1 {
		t.violates(adviceStay, "the pod waited on %s, and the scheduler posted Bindings to other nodes in the meantime: %s", nodes[0], strings.Join(nodes[1:], ", "))
	}
	if warnings != "" && t.NoFailureEvents {
		t.violates(adviceStay, "the scheduler reported the waiting pod as a failure: %s", warnings)
	}
	t.must(labelNode(ctx, t.client, nodes[0], nodeLabel(pod.Namespace, pod.Name), set))
	released := time.Now()
	pod = t.bound(ctx, pod, adviceRepeat)
	t.on(pod, nodes[0], "it waited there", adviceStay)
	if key := t.BindingAnnotation; key != "" && pod.Annotations[key] == "" {
		t.violates("Post the same annotations with every call for a bind. client-go does it. If your scheduler builds the Binding again, add its annotations again.",
			"the bound pod lacks the annotation %s, which the scheduler should set on the Binding", key)
	}
	detail := fmt.Sprintf("waited %s, then bound to %s %s later", seconds(waited), nodes[0], seconds(time.Since(released)))
	if warnings != "" {
		detail += "; the scheduler reported " + warnings
	}
	return detail
}

// checkRefused checks that the scheduler tries again after a rejection, with backoff, and binds the pods to another node. The pods require
// a label, which moves from a node without free devices to the other node.
func checkRefused(ctx context.Context, t *trial) string {
	full, free := t.nodes[0].Name, t.nodes[1].Name
	required := nodeLabel(t.ns.Name, "refused")
	t.must(labelNode(ctx, t.client, full, required, set))
	var devices []string
	for i := range refused {
		devices = append(devices, fmt.Sprintf("%s-%d", t.ns.Name, i))
	}
	holder := t.creates(ctx, "holder", unscheduled, annotation(deviceAnnotation, strings.Join(devices, ",")))
	t.must(t.client.CoreV1().Pods(t.ns.Name).Bind(ctx, dryrun.Binding(holder, full, nil), metav1.CreateOptions{}))
	var pods []*corev1.Pod
	for i, id := range devices {
		pods = append(pods, t.creates(ctx, fmt.Sprintf("refused-%d", i), annotation(deviceAnnotation, id), onNodesWith(required, "true")))
	}
	t.backsOff(ctx, pods[0])
	for _, pod := range pods[1:] {
		t.answered(ctx, work.ReasonRefused, pod)
	}
	t.must(labelNode(ctx, t.client, free, required, set))
	t.must(labelNode(ctx, t.client, full, required, unset))
	moved := time.Now()
	before := map[*corev1.Pod]int{}
	for _, pod := range pods {
		before[pod] = t.count(ctx, pod, work.ReasonRefused)
		t.must(t.touch(ctx, pod, 0)) // Events show the next answer, too.
	}
	if late := t.late(ctx, pods); len(late) > 0 {
		dropped := 0
		for _, pod := range late {
			if t.count(ctx, pod, work.ReasonRefused) == before[pod] {
				dropped++
			}
		}
		t.violates(adviceAgain+" Choose a node again: node "+free+" was free.",
			"%d of %d rejected pods were not bound within %s after %s was free, and the scheduler posted no other Binding of %d of them; pod %s%s",
			len(late), refused, t.Timeout, free, dropped, late[0].Name, t.why(ctx, late[0]))
	}
	return fmt.Sprintf("refused on %s (403) with backoff, then all %d pods were bound %s after %s was free", full, refused, seconds(time.Since(moved)), free)
}

// checkInvalid checks that the scheduler does not repeat a Binding with an invalid annotation in a loop.
func checkInvalid(ctx context.Context, t *trial) string {
	t.backsOff(ctx, t.creates(ctx, "invalid", annotation("binder.prebind.dev/timeout", "soon")))
	return "refused as invalid (422), and not repeated in a loop"
}

// checkInternal checks that the scheduler tries a pod again after an internal error, on the only node that the pod allows. A webhook
// that the API server cannot call makes the error after Prebind has allowed the bind.
func checkInternal(ctx context.Context, t *trial) string {
	t.apply(ctx, "internal.yaml", "")
	probe := t.creates(ctx, "internal-probe", unscheduled)
	if !t.applied(ctx, probe, apierrors.IsInternalError) {
		t.skips("within %s, the API server did not apply a ValidatingWebhookConfiguration", appliedTime)
	}
	id := t.ns.Name + "-internal"
	pod := t.creates(ctx, "internal", onNode(t.nodes[0]), annotation(deviceAnnotation, id))
	t.posted(ctx, pod, func(ctx context.Context) (bool, error) { // Prebind reserves the device with the first Binding.
		x, err := t.explain(ctx, t.nodes[0].Name, map[string]string{deviceAnnotation: id})
		return err == nil && slices.ContainsFunc(x.Plugins, func(p binder.PluginExplanation) bool {
			return p.Name == device && p.Verdict == binder.PluginRejects
		}), err
	})
	t.staysUnbound(ctx, pod, settles)
	t.must(t.client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Delete(ctx, t.ns.Name+".conformance.prebind.dev", metav1.DeleteOptions{}))
	ended := time.Now()
	t.bound(ctx, pod, "After an internal error, release the node and schedule the pod again, with backoff. Do not exclude the node: it is rarely the cause.")
	return fmt.Sprintf("bound %s after the end of the errors (500)", seconds(time.Since(ended)))
}
