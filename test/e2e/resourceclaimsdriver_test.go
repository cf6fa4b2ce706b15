// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/prebind/prebind/test/gen"
)

// deviceDriver acts like a DRA driver: it publishes devices, and sets the conditions of claims. Its DeviceClass has its name.
type deviceDriver struct {
	*bench
	name string
}

func (b *bench) newDeviceDriver(name string) *deviceDriver {
	b.t.Helper()
	_, err := b.client.ResourceV1().DeviceClasses().Create(b.t.Context(), gen.DeviceClass(name), metav1.CreateOptions{})
	require.NoError(b.t, err)
	return &deviceDriver{bench: b, name: name}
}

// publish creates the node's pool. An empty node means a pool for all nodes.
func (d *deviceDriver) publish(node string, devices ...resourcev1.Device) {
	d.t.Helper()
	_, err := d.client.ResourceV1().ResourceSlices().Create(d.t.Context(), gen.ResourceSlice(d.name, node, devices...), metav1.CreateOptions{})
	require.NoError(d.t, err)
}

// resourceClaim creates a claim. If the options set a status, it writes the status like a scheduler.
func (b *bench) resourceClaim(name string, options ...gen.ResourceClaimOption) {
	b.t.Helper()
	claims := b.client.ResourceV1().ResourceClaims(b.ns)
	wanted := gen.ResourceClaim(name, append(options, gen.InNamespace(b.ns))...)
	claim, err := claims.Create(b.t.Context(), wanted, metav1.CreateOptions{})
	require.NoError(b.t, err)
	if wanted.Status.Allocation != nil {
		claim.Status = wanted.Status
		_, err = claims.UpdateStatus(b.t.Context(), claim, metav1.UpdateOptions{FieldManager: "some-scheduler"})
		require.NoError(b.t, err)
	}
}

func (b *bench) resourceClaimTemplate(name string, options ...gen.ResourceClaimOption) {
	b.t.Helper()
	template := gen.ResourceClaimTemplate(name, append(options, gen.InNamespace(b.ns))...)
	_, err := b.client.ResourceV1().ResourceClaimTemplates(b.ns).Create(b.t.Context(), template, metav1.CreateOptions{})
	require.NoError(b.t, err)
}

func (b *bench) getResourceClaim(name string) *resourcev1.ResourceClaim {
	b.t.Helper()
	claim, err := b.client.ResourceV1().ResourceClaims(b.ns).Get(b.t.Context(), name, metav1.GetOptions{})
	require.NoError(b.t, err)
	return claim
}

// resourceClaims returns the claims of the test.
func (b *bench) resourceClaims() []*resourcev1.ResourceClaim {
	b.t.Helper()
	list, err := b.client.ResourceV1().ResourceClaims(b.ns).List(b.t.Context(), metav1.ListOptions{})
	require.NoError(b.t, err)
	var claims []*resourcev1.ResourceClaim
	for i := range list.Items {
		claims = append(claims, &list.Items[i])
	}
	return claims
}

// untilResourceClaim reads the claim until the condition holds, and returns it.
func (b *bench) untilResourceClaim(name, what string, condition func(*resourcev1.ResourceClaim) bool) *resourcev1.ResourceClaim {
	b.t.Helper()
	var claim *resourcev1.ResourceClaim
	err := wait.PollUntilContextTimeout(b.t.Context(), reads, patience, true, func(context.Context) (bool, error) {
		var err error
		claim, err = b.client.ResourceV1().ResourceClaims(b.ns).Get(b.t.Context(), name, metav1.GetOptions{})
		return err == nil && condition(claim), nil
	})
	require.NoError(b.t, err, "waiting for the claim %s to be %s: %v; events: %v", name, what, claim, b.allEvents())
	return claim
}

// reservedOnceFor reports whether the claim is reserved once for each of the pods, and for no others.
func reservedOnceFor(pods ...*corev1.Pod) func(*resourcev1.ResourceClaim) bool {
	var want []string
	for _, pod := range pods {
		want = append(want, string(pod.UID))
	}
	slices.Sort(want)
	return func(claim *resourcev1.ResourceClaim) bool { return slices.Equal(want, reservationsOf(claim)) }
}

// reservationsOf returns the UIDs of the claim's consumers, in order.
func reservationsOf(claim *resourcev1.ResourceClaim) []string {
	var uids []string
	for _, r := range claim.Status.ReservedFor {
		uids = append(uids, string(r.UID))
	}
	slices.Sort(uids)
	return uids
}

// markPrefix is the prefix of the annotations with which Prebind marks claims.
const markPrefix = "resource-claims.prebind.dev/"

// marksOn returns the keys of the marks on the claim.
func marksOn(claim *resourcev1.ResourceClaim) []string {
	return slices.DeleteFunc(slices.Collect(maps.Keys(claim.Annotations)), func(key string) bool { return !strings.HasPrefix(key, markPrefix) })
}

// writtenByPrebind reports whether Prebind manages any field of the claim.
func writtenByPrebind(claim *resourcev1.ResourceClaim) bool {
	return slices.ContainsFunc(claim.ManagedFields, func(m metav1.ManagedFieldsEntry) bool { return strings.HasPrefix(m.Manager, "prebind") })
}

// assertReserved checks that the claim is allocated, and reserved once for each of the pods and for no others.
func (b *bench) assertReserved(claim string, pods ...*corev1.Pod) *resourcev1.ResourceClaim {
	b.t.Helper()
	stored := b.getResourceClaim(claim)
	assert.NotNil(b.t, stored.Status.Allocation, "the claim %s should be allocated", claim)
	assert.True(b.t, reservedOnceFor(pods...)(stored), "the claim %s should be reserved once for each of %d pods: %v", claim, len(pods), stored.Status.ReservedFor)
	return stored
}

// untilUnmarked waits until Prebind has removed its marks.
func (b *bench) untilUnmarked(claim string) {
	b.t.Helper()
	b.untilResourceClaim(claim, "unmarked", func(claim *resourcev1.ResourceClaim) bool { return len(marksOn(claim)) == 0 })
}
