// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"

	"github.com/prebind/prebind/cmd/kubectl-prebind/internal/dryrun"
	"github.com/prebind/prebind/internal/work"
)

// claims creates a claim, and a pod that uses it. It returns the pod and the node for which the volume is requested.
func (t *trial) claims(ctx context.Context, name string, options ...podOption) (pod *corev1.Pod, claim *corev1.PersistentVolumeClaim, node string) {
	for _, n := range t.nodes { // Some schedulers use only nodes with the driver.
		t.must(setDriver(ctx, t.client, n.Name, t.ns.Name, false))
	}
	t.apply(ctx, "claim.yaml", values{Name: name})
	pod = t.creates(ctx, name, append(options, usesClaim(name))...)
	if !t.until(ctx, t.Timeout, func(ctx context.Context) (_ bool, err error) {
		if claim, err = t.client.CoreV1().PersistentVolumeClaims(t.ns.Name).Get(ctx, name, metav1.GetOptions{}); err == nil {
			node = claim.Annotations[volume.AnnSelectedNode]
		}
		return node != "", err
	}) {
		t.violates("Post the Binding of a pod with unbound claims. Prebind binds them. If your scheduler binds volumes itself, set the annotation "+volume.AnnSelectedNode+".",
			"neither the scheduler nor Prebind requested the volume of claim %s within %s%s", name, t.Timeout, t.why(ctx, pod))
	}
	return pod, claim, node
}

// checkVolume checks that a pod whose volume does not exist yet is bound when the volume is bound, to its node.
func checkVolume(ctx context.Context, t *trial) string {
	pod, claim, node := t.claims(ctx, "volume")
	t.staysUnbound(ctx, pod, provisionTime)
	list, err := t.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + node})
	t.must(err)
	if len(list.Items) == 0 {
		t.violates("Bind to existing nodes.", "the volume was requested for node %s, which does not exist", node)
	}
	t.apply(ctx, "volume.yaml", values{Name: claim.Name, UID: string(claim.UID), Hostname: list.Items[0].Labels[corev1.LabelHostname]})
	created := time.Now()
	pod = t.bound(ctx, pod, adviceRepeat)
	t.on(pod, node, "the volume is there", adviceStay)
	// The event of the wait can be late, so it is read at the end.
	all, err := t.events(ctx, pod)
	t.must(err)
	who := "the scheduler waited for the volume itself"
	if len(sightings(all, work.ReasonWaiting)) > 0 {
		who = "Prebind made the bind wait"
	}
	return fmt.Sprintf("bound to %s %s after its volume was created; %s", node, seconds(time.Since(created)), who)
}

// checkRollback checks that the deletion of a waiting pod leaves no reservation.
func checkRollback(ctx context.Context, t *trial) string {
	id := t.ns.Name + "-rollback"
	pod, _, node := t.claims(ctx, "rollback", annotation(deviceAnnotation, id))
	held := func(ctx context.Context) (bool, error) { return t.deviceHeld(ctx, node, id) }
	// Prebind holds the device while the bind waits for the volume.
	by := "the Binding of the scheduler"
	if !t.until(ctx, provisionTime, held) {
		by = "a Binding of this command, because the scheduler waits for volumes itself"
		t.deletes(ctx, pod)
		pod = t.creates(ctx, "rollback", unscheduled, usesClaim("rollback"), annotation(deviceAnnotation, id))
		// The call ends with an error when the pod is deleted.
		go func() {
			_ = t.client.CoreV1().Pods(t.ns.Name).Bind(ctx, dryrun.Binding(pod, node, nil), metav1.CreateOptions{})
		}()
		if !t.until(ctx, rollbackTime, held) {
			t.violates("Check the log of Prebind. This is not a problem of the scheduler.", "Prebind holds no device while the bind waits for its volume")
		}
	}
	t.deletes(ctx, pod)
	deleted := time.Now()
	if !t.until(ctx, rollbackTime, func(ctx context.Context) (bool, error) {
		held, err := held(ctx)
		return !held, err
	}) {
		t.violates("Stop repeating the Binding of a deleted pod. If your scheduler does, check the log of Prebind.",
			"%s after the deletion of the pod, Prebind still holds its device on node %s", rollbackTime, node)
	}
	return fmt.Sprintf("the device was free %s after the deletion of the waiting pod (%s)", seconds(time.Since(deleted)), by)
}
