// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/component-helpers/storage/volume"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/install"
)

// patience is the timeout of waits.
const patience = cluster.Patience

// attemptKey is the annotation with the attempt that bound the pod.
const attemptKey = "binder.prebind.dev/attempt"

// reads is the pause between two reads of an object that a test waits for.
const reads = 50 * time.Millisecond

// until reads the pod until the condition holds, and returns it.
func (b *bench) until(what string, condition func(*corev1.Pod) bool) *corev1.Pod {
	b.t.Helper()
	return untilRead(b, b.client.CoreV1().Pods(b.ns).Get, "pod", what, condition)
}

// untilRead reads an object until the condition holds, and returns it.
func untilRead[T any](b *bench, get func(context.Context, string, metav1.GetOptions) (T, error), name, what string, condition func(T) bool) T {
	b.t.Helper()
	var object T
	err := wait.PollUntilContextTimeout(b.t.Context(), reads, patience, true, func(ctx context.Context) (bool, error) {
		var err error
		object, err = get(ctx, name, metav1.GetOptions{})
		return err == nil && condition(object), nil
	})
	require.NoError(b.t, err, "waiting for the %T %s to be %s: %v; events: %v", object, name, what, object, b.allEvents())
	return object
}

func (b *bench) untilBound() *corev1.Pod {
	b.t.Helper()
	return b.until("bound", func(pod *corev1.Pod) bool { return pod.Spec.NodeName != "" })
}

func (b *bench) getPod() *corev1.Pod {
	b.t.Helper()
	pod, err := b.client.CoreV1().Pods(b.ns).Get(b.t.Context(), "pod", metav1.GetOptions{})
	require.NoError(b.t, err)
	return pod
}

func (b *bench) getClaim(name string) *corev1.PersistentVolumeClaim {
	b.t.Helper()
	claim, err := b.client.CoreV1().PersistentVolumeClaims(b.ns).Get(b.t.Context(), name, metav1.GetOptions{})
	require.NoError(b.t, err)
	return claim
}

// assertNotBound checks that the pod has no node, and returns it.
func (b *bench) assertNotBound() *corev1.Pod {
	b.t.Helper()
	pod := b.getPod()
	assert.Empty(b.t, pod.Spec.NodeName, "the pod should not be bound")
	return pod
}

// events returns "reason: message" of the pod's events.
func (b *bench) events() []string {
	return b.listEvents(fields.OneTermEqualSelector("involvedObject.name", "pod").String())
}

// allEvents returns the events of all objects of the test.
func (b *bench) allEvents() []string { return b.listEvents("") }

func (b *bench) listEvents(selector string) []string {
	list, err := b.client.CoreV1().Events(b.ns).List(context.WithoutCancel(b.t.Context()), metav1.ListOptions{FieldSelector: selector})
	if err != nil {
		return []string{"cannot be read: " + err.Error()}
	}
	var out []string
	for _, e := range list.Items {
		out = append(out, e.Reason+": "+e.Message)
	}
	return out
}

// audited returns the audit events of the Bindings in the namespace, in order. The API server logs a Binding before its client gets the answer,
// but after the pod is bound. audited therefore waits for the Bindings of all pods that are bound.
func (b *bench) audited() []cluster.AuditEvent {
	b.t.Helper()
	var out []cluster.AuditEvent
	require.EventuallyWithT(b.t, func(c *assert.CollectT) {
		pods, err := b.client.CoreV1().Pods(b.ns).List(b.t.Context(), metav1.ListOptions{})
		require.NoError(c, err)
		events, err := b.cluster.AuditEvents()
		require.NoError(c, err)
		out = slices.DeleteFunc(events, func(e cluster.AuditEvent) bool { return e.ObjectRef == nil || e.ObjectRef.Namespace != b.ns })
		bound := 0
		for _, e := range out {
			if e.ResponseStatus != nil && e.ResponseStatus.Code == http.StatusCreated && !strings.Contains(e.RequestURI, "dryRun=") {
				bound++
			}
		}
		assert.GreaterOrEqual(c, bound, len(slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool { return !boundByBinding(&p) })))
	}, patience, 20*time.Millisecond, "the API server should log the Bindings of all bound pods")
	return out
}

// boundByBinding reports whether a Binding bound the pod. A pod that was created with a node lacks the condition.
func boundByBinding(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue
	})
}

// decisions returns Prebind's decision on each Binding of the pod, in order, from the API server's audit log.
func (b *bench) decisions() []string {
	b.t.Helper()
	var out []string
	for _, e := range b.audited() {
		if said, ok := e.Annotations[install.WebhookName+"/decision"]; ok {
			out = append(out, said)
		}
	}
	return out
}

// assertTopology checks the topology annotations of the pod.
func (b *bench) assertTopology(pod *corev1.Pod) {
	b.t.Helper()
	node := b.node(pod.Spec.NodeName)
	for key, label := range map[string]string{
		"zone": corev1.LabelTopologyZone, "region": corev1.LabelTopologyRegion, "hostname": corev1.LabelHostname, "rack": cluster.RackLabel,
	} {
		require.NotEmpty(b.t, node.Labels[label], "the node should have the label %s", label)
		assert.Equal(b.t, node.Labels[label], pod.Annotations["topology.prebind.dev/"+key], "the annotation for %s", label)
	}
}

// assertClaimBound checks that the claim is completely bound to a volume that the node can use.
func (b *bench) assertClaimBound(name, node string) *corev1.PersistentVolumeClaim {
	b.t.Helper()
	claim := b.getClaim(name)
	require.NotEmpty(b.t, claim.Spec.VolumeName, "the claim %s should have a volume", name)
	assert.Contains(b.t, claim.Annotations, volume.AnnBindCompleted)
	pv, err := b.client.CoreV1().PersistentVolumes().Get(b.t.Context(), claim.Spec.VolumeName, metav1.GetOptions{})
	require.NoError(b.t, err)
	if assert.NotNil(b.t, pv.Spec.ClaimRef) {
		assert.Equal(b.t, claim.UID, pv.Spec.ClaimRef.UID)
	}
	assert.NoError(b.t, volume.CheckNodeAffinity(pv, b.node(node).Labels))
	return claim
}

// assertNeverFailed checks that the scheduler never reported the pod.
func (b *bench) assertNeverFailed() {
	b.t.Helper()
	for _, e := range b.events() {
		// On a busy machine, kube-scheduler may observe a pod before its claim.
		if strings.Contains(e, "persistentvolumeclaim") && strings.Contains(e, "not found") {
			continue
		}
		assert.NotContains(b.t, e, "FailedScheduling")
	}
}

// says reports whether one of the events contains all of the words.
func says(events []string, words ...string) bool {
	return slices.ContainsFunc(events, func(e string) bool {
		return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(e, w) })
	})
}
