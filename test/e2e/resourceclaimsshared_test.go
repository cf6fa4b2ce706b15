// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
)

// Fifty pods share a claim. kube-scheduler allocates the claim for its first pod and reserves it for each of its pods. A client without
// support for claims binds the other pods, and retries until it succeeds.
func TestSharedResourceClaim(t *testing.T) {
	t.Parallel()
	const pods = 50
	b := newBench(t, shared, nil)
	d := b.newDeviceDriver(b.ns + ".example.com")
	d.publish("", gen.Device("net-0")) // Every node can use the device.
	b.resourceClaim("net", gen.RequestsDevices(d.name, 1))
	seen := b.watchResourceClaims()

	var all []*corev1.Pod
	scheduledBy, insisting := map[string]string{}, make(chan []error, pods)
	for i := range pods {
		scheduler := byHand
		if i%2 == 0 {
			scheduler = cluster.DefaultScheduler
		}
		pod, err := b.createPod(fmt.Sprintf("pod-%d", i), scheduler, gen.UsesResourceClaim("net"))
		require.NoError(t, err)
		all = append(all, pod)
		scheduledBy[string(pod.UID)] = scheduler
		if scheduler == byHand {
			binding := gen.Binding(pod, fmt.Sprintf("node-%d", i%6+1))
			go func() { insisting <- b.insist(t.Context(), binding) }()
		}
	}
	for range pods / 2 {
		errs := <-insisting
		assert.NoError(t, errs[len(errs)-1])
	}
	for _, pod := range b.untilPodsBound(pods) {
		assert.NotEmpty(t, pod.Annotations["topology.prebind.dev/hostname"])
	}
	b.assertReserved("net", all...)
	b.untilUnmarked("net")
	last := b.assertReserved("net", all...)
	assertReservationsInOrder(t, seen.upTo(b, last), scheduledBy)
	b.assertReleased("net", all)
}

// assertReservationsInOrder checks every version of a claim: The claim is reserved at most once per pod. A reservation of Prebind has a
// mark, because replicas cannot remove it otherwise. A reservation of kube-scheduler has no mark.
func assertReservationsInOrder(t *testing.T, versions []*resourcev1.ResourceClaim, scheduledBy map[string]string) {
	t.Helper()
	had := map[string]bool{}
	for _, claim := range versions {
		marks, now := marksOn(claim), map[string]bool{}
		for _, uid := range reservationsOf(claim) {
			assert.False(t, now[uid], "version %s: the pod %s has two reservations", claim.ResourceVersion, uid)
			now[uid] = true
			if !had[uid] && scheduledBy[uid] == byHand {
				assert.NotEmpty(t, marks[uid], "version %s: the reservation for pod %s has no mark, so no replica can remove it", claim.ResourceVersion, uid)
			}
		}
		for uid := range marks {
			assert.Equal(t, byHand, scheduledBy[uid], "version %s: a reservation of kube-scheduler has a mark of Prebind", claim.ResourceVersion)
		}
		for uid := range had {
			assert.True(t, now[uid], "version %s: the pod %s has lost its reservation", claim.ResourceVersion, uid)
		}
		had = now
	}
}

// assertReleased deletes the pods and checks that kube-controller-manager then deallocates the claim, as it does without Prebind.
func (b *bench) assertReleased(claim string, pods []*corev1.Pod) {
	b.t.Helper()
	require.NoError(b.t, b.client.CoreV1().Pods(b.ns).DeleteCollection(b.t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
	b.untilResourceClaim(claim, fmt.Sprintf("given back by %d pods", len(pods)), func(claim *resourcev1.ResourceClaim) bool {
		return released(claim) && !allocated(claim)
	})
}
