// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
)

// A scheduler without support for volumes does not handle these cases, so the test binds all pods by hand.

// Only one pod at a time can use a ReadWriteOncePod claim. The claim is free when the pod is deleted.
func TestReadWriteOncePod(t *testing.T) {
	t.Parallel()
	b := newBench(t, shared, nil)
	claim := gen.Claim("data", gen.InNamespace(b.ns), gen.OfClass(b.dynamic("1s")), gen.AccessModes(corev1.ReadWriteOncePod))
	_, err := b.client.CoreV1().PersistentVolumeClaims(b.ns).Create(t.Context(), claim, metav1.CreateOptions{})
	require.NoError(t, err)
	for _, name := range []string{"first", "second"} {
		_, err := b.createPod(name, byHand, gen.UsesClaim("data"))
		require.NoError(t, err)
	}
	bind := func(name string) error {
		return b.bindByHand(gen.Binding(gen.Pod(name, gen.InNamespace(b.ns)), "node-1"))
	}
	require.NoError(t, bind("first"))
	b.assertClaimBound("data", "node-1")
	err = bind("second")
	require.True(t, apierrors.IsForbidden(err), "%v", err)
	assert.ErrorContains(t, err, "first", "the denial should name the pod that uses the claim")

	require.NoError(t, b.client.CoreV1().Pods(b.ns).Delete(t.Context(), "first", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}))
	assert.NoError(t, bind("second"))
}

// A controller creates the claim of a generic ephemeral volume after the pod. The bind of a faster scheduler waits.
func TestEphemeralVolume(t *testing.T) {
	t.Parallel()
	b := newBench(t, shared, nil)
	b.podWith(byHand, gen.EphemeralVolume("scratch", gen.OfClass(b.dynamic("1s"))))
	require.NoError(t, b.bindByHand(b.binding("node-3")))
	b.assertTopology(b.untilBound())
	b.assertClaimBound("pod-scratch", "node-3")
}

// If two pods race for one volume on two replicas, one pod gets it and Prebind rejects the other one.
func TestRaceForOneVolume(t *testing.T) {
	t.Parallel()
	b := newBench(t, shared, nil)
	class, volumes := b.static("node-4", "1Gi")
	results := make(chan error)
	for _, name := range []string{"a", "b"} {
		b.claim(name, class)
		_, err := b.createPod(name, byHand, gen.UsesClaim(name))
		require.NoError(t, err)
		go func() { results <- b.bindByHand(gen.Binding(gen.Pod(name, gen.InNamespace(b.ns)), "node-4")) }()
	}
	one, other := <-results, <-results
	if one != nil {
		one, other = other, one
	}
	require.NoError(t, one)
	require.True(t, apierrors.IsForbidden(other), "%v", other)
	pv, err := b.client.CoreV1().PersistentVolumes().Get(t.Context(), volumes[0], metav1.GetOptions{})
	require.NoError(t, err)
	claim, err := b.client.CoreV1().PersistentVolumeClaims(b.ns).Get(t.Context(), pv.Spec.ClaimRef.Name, metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, volumes[0], claim.Spec.VolumeName)
}

// Many pods share a claim that does not exist yet. All of them wait for it.
func TestSharedClaim(t *testing.T) {
	t.Parallel()
	const pods = 10
	b := newBench(t, shared, nil)
	b.claim("data", b.class(cluster.ProvisionerName, gen.Parameter("delay", "3s")))
	results := make(chan error)
	for i := range pods {
		name := fmt.Sprintf("pod-%d", i)
		_, err := b.createPod(name, byHand, gen.UsesClaim("data"))
		require.NoError(t, err)
		go func() { results <- b.bindByHand(gen.Binding(gen.Pod(name, gen.InNamespace(b.ns)), "node-5")) }()
	}
	for range pods {
		assert.NoError(t, <-results)
	}
	b.assertClaimBound("data", "node-5")
}
