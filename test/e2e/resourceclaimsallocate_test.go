// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/prebind/prebind/test/gen"
)

// raceClass is a DeviceClass that only Prebind allocates. Every pod needs one device.
const raceClass = "owned-race.example.com"

// A hundred pods request one device each. Forty devices exist: some per node, and some that every node can use. Two replicas allocate
// them. No device is allocated twice, and the denial of a pod without a device contains the reason.
func testAllocationRace(t *testing.T, w *world) {
	t.Parallel()
	const pods, nodes, ofNode, ofAll = 100, 4, 8, 8
	const devices = nodes*ofNode + ofAll
	b := newBench(t, w, nil)
	d := b.newDeviceDriver(raceClass)
	for i := range nodes {
		d.publish(raceNode(i), gen.Devices("gpu", ofNode)...)
	}
	d.publish("", gen.Devices("net", ofAll)...)
	b.resourceClaimTemplate("device", gen.RequestsDevices(raceClass, 1))
	seen := b.watchResourceClaims()

	racers := map[string]*corev1.Binding{}
	for i := range pods {
		pod, err := b.createPod(fmt.Sprintf("pod-%d", i), byHand, gen.UsesResourceClaimTemplate("device"))
		require.NoError(t, err)
		racers[pod.Name] = gen.Binding(pod, raceNode(i))
	}
	refused := b.bindAll(racers)
	assert.Len(t, refused, pods-devices)
	for name, err := range refused {
		assert.ErrorContains(t, err, "no free devices on node "+racers[name].Target.Name+" match its requests")
		assert.ErrorContains(t, err, "ResourceClaim "+b.ns+"/"+name+"-device-")
	}
	b.assertDevicesGiven(devices)
	b.untilNoneMarked()

	// Some pods end, and the same number of other pods get their devices.
	gone := 0
	for name, binding := range racers {
		if refused[name] == nil && binding.Target.Name == raceNode(0) {
			require.NoError(t, b.client.CoreV1().Pods(b.ns).Delete(t.Context(), name, metav1.DeleteOptions{}))
			gone++
		}
	}
	require.GreaterOrEqual(t, gone, ofNode)
	b.untilDevicesGiven(devices - gone)
	maps.DeleteFunc(racers, func(name string, binding *corev1.Binding) bool {
		return refused[name] == nil || binding.Target.Name != raceNode(0)
	})
	require.Greater(t, gone+len(racers), devices/nodes)
	again := b.bindAll(racers)
	if len(again) > max(0, len(racers)-gone) {
		// The other replica may have answered a call that had to wait. The first replica keeps its error for a minute, and reports it
		// once.
		once := maps.Clone(racers)
		maps.DeleteFunc(once, func(name string, _ *corev1.Binding) bool { return again[name] == nil })
		again = b.bindAll(once)
	}
	assert.Len(t, again, max(0, len(racers)-gone), "released devices should be allocated again")
	b.assertDevicesGiven(devices - gone + len(racers) - len(again))
	b.untilNoneMarked()
	assertNoDeviceTwice(t, seen.all())
}

func raceNode(i int) string { return fmt.Sprintf("node-%d", i%4+1) }

// bindAll posts all Bindings in parallel. It repeats each one until the pod is bound or refused, and returns the refusals.
func (b *bench) bindAll(bindings map[string]*corev1.Binding) map[string]error {
	b.t.Helper()
	type result struct {
		name string
		err  error
	}
	results := make(chan result)
	ctx, cancel := context.WithTimeout(b.t.Context(), patience)
	defer cancel()
	for name, binding := range bindings {
		go func() {
			for {
				err := b.client.CoreV1().Pods(b.ns).Bind(ctx, binding, metav1.CreateOptions{})
				if apierrors.IsTooManyRequests(err) || apierrors.IsConflict(err) || unanswered(err) {
					continue // client-go stops after ten repeats, and the scheduler retries.
				}
				results <- result{name: name, err: err}
				return
			}
		}()
	}
	refused := map[string]error{}
	for range bindings {
		if r := <-results; r.err != nil {
			assert.True(b.t, apierrors.IsForbidden(r.err), "%s: %v", r.name, r.err)
			refused[r.name] = r.err
		}
	}
	return refused
}

// unanswered reports whether the call of the API server to Prebind timed out. This happens on a busy machine, and a scheduler then
// retries.
func unanswered(err error) bool {
	return apierrors.IsInternalError(err) && strings.Contains(err.Error(), "failed calling webhook") && strings.Contains(err.Error(), "deadline exceeded")
}

// given returns the claims with devices. It checks that each claim is reserved for one pod that is bound to a node which can use the
// devices, and that kube-controller-manager can deallocate the claim.
func (b *bench) given(t require.TestingT) []*resourcev1.ResourceClaim {
	pods, err := b.client.CoreV1().Pods(b.ns).List(b.t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	byUID := map[string]*corev1.Pod{}
	for i := range pods.Items {
		byUID[string(pods.Items[i].UID)] = &pods.Items[i]
	}
	list, err := b.client.ResourceV1().ResourceClaims(b.ns).List(b.t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	var given []*resourcev1.ResourceClaim
	for i := range list.Items {
		claim := &list.Items[i]
		if !allocated(claim) {
			assert.Empty(t, claim.Status.ReservedFor, "the claim %s has no devices", claim.Name)
			continue
		}
		given = append(given, claim)
		assert.Contains(t, claim.Finalizers, resourcev1.Finalizer, "the claim %s", claim.Name)
		if b.enabled(b.t, bindingConditions) { // Otherwise the API server drops the field.
			assert.NotNil(t, claim.Status.Allocation.AllocationTimestamp, "the claim %s", claim.Name)
		}
		uids := reservationsOf(claim)
		if !assert.Len(t, uids, 1, "the claim %s", claim.Name) {
			continue
		}
		pod := byUID[uids[0]]
		if assert.NotNil(t, pod, "the claim %s is reserved for a deleted pod", claim.Name) && assert.NotEmpty(t, pod.Spec.NodeName, "the pod %s has a device", pod.Name) {
			b.assertUsable(t, claim, pod.Spec.NodeName)
		}
	}
	return given
}

// assertUsable checks that the node can use the claim's devices, according to their pools and to the allocation.
func (b *bench) assertUsable(t require.TestingT, claim *resourcev1.ResourceClaim, node string) {
	for _, r := range claim.Status.Allocation.Devices.Results {
		assert.Contains(t, []string{node, gen.SharedPool}, r.Pool, "the claim %s", claim.Name)
		if r.Pool == gen.SharedPool {
			continue
		}
		if !assert.NotNil(t, claim.Status.Allocation.NodeSelector, "the claim %s is for one node", claim.Name) {
			continue
		}
		selector, err := nodeaffinity.NewNodeSelector(claim.Status.Allocation.NodeSelector)
		require.NoError(t, err)
		object, err := b.client.CoreV1().Nodes().Get(b.t.Context(), node, metav1.GetOptions{})
		require.NoError(t, err)
		assert.True(t, selector.Match(object), "the claim %s", claim.Name)
	}
}

// assertDevicesGiven checks that n claims have one device each, and that no two claims have the same device.
func (b *bench) assertDevicesGiven(n int) {
	b.t.Helper()
	b.assertGiven(b.t, n)
}

// untilDevicesGiven waits until kube-controller-manager has deallocated all claims except n.
func (b *bench) untilDevicesGiven(n int) {
	b.t.Helper()
	require.EventuallyWithT(b.t, func(c *assert.CollectT) { b.assertGiven(c, n) }, patience, 200*time.Millisecond)
}

func (b *bench) assertGiven(t require.TestingT, n int) {
	given := b.given(t)
	assert.Len(t, given, n)
	holders := map[string]string{}
	for _, claim := range given {
		for _, device := range claimedBy(claim) {
			assert.Empty(t, holders[device], "%s is also allocated to %s", device, claim.Name)
			holders[device] = claim.Name
		}
	}
	assert.Len(t, holders, n)
}

// claimedBy returns the devices of the claim.
func claimedBy(claim *resourcev1.ResourceClaim) []string {
	var names []string
	if allocated(claim) {
		for _, r := range claim.Status.Allocation.Devices.Results {
			names = append(names, r.Driver+"/"+r.Pool+"/"+r.Device)
		}
	}
	return names
}

// assertNoDeviceTwice checks that no two claims had the same device at the same time.
func assertNoDeviceTwice(t *testing.T, versions []*resourcev1.ResourceClaim) {
	t.Helper()
	holders := map[string]string{}
	for _, claim := range versions {
		now := claimedBy(claim)
		maps.DeleteFunc(holders, func(device, holder string) bool { return holder == claim.Name && !slices.Contains(now, device) })
		for _, device := range now {
			if holder := holders[device]; holder != "" {
				assert.Equal(t, claim.Name, holder, "version %s: %s has two holders", claim.ResourceVersion, device)
			}
			holders[device] = claim.Name
		}
	}
	assert.NotEmpty(t, holders, "the watch should have seen devices")
}

// untilNoneMarked waits until Prebind has removed its marks from all claims of the test.
func (b *bench) untilNoneMarked() {
	b.t.Helper()
	require.EventuallyWithT(b.t, func(c *assert.CollectT) {
		list, err := b.client.ResourceV1().ResourceClaims(b.ns).List(b.t.Context(), metav1.ListOptions{})
		require.NoError(c, err)
		for i := range list.Items {
			assert.Empty(c, marksOn(&list.Items[i]), "the claim %s", list.Items[i].Name)
		}
	}, patience, 200*time.Millisecond, "no marks should be left")
}

// recorded returns the allocated devices in Prebind's records, in the format of claims.
func (b *bench) recorded(driver string) []string {
	b.t.Helper()
	list, err := b.client.CoreV1().ConfigMaps("prebind-system").List(b.t.Context(),
		metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=prebind-pool-record"})
	require.NoError(b.t, err)
	var names []string
	for _, object := range list.Items {
		if object.Data["driver"] != driver {
			continue
		}
		for key := range object.Data {
			if device, ok := strings.CutPrefix(key, "device."); ok {
				names = append(names, driver+"/"+object.Data["pool"]+"/"+device)
			}
		}
	}
	slices.Sort(names)
	return names
}

// Prebind waits for a claim that does not exist yet, and then allocates it.
func testAllocatesWhenMade(t *testing.T, w *world) {
	t.Parallel()
	b := newBench(t, w, nil)
	d := b.newDeviceDriver("owned-template.example.com")
	d.publish("node-1", gen.Device("gpu-0"))
	b.podWith(byHand, gen.UsesResourceClaimTemplate("gpus"))
	bound := b.beginBind("node-1")
	b.untilEvent("WaitingForPreBind", "kube-controller-manager to create the claim", `"gpus"`)
	b.resourceClaimTemplate("gpus", gen.RequestsDevices(d.name, 1))
	require.NoError(t, b.end(bound))
	pod := b.untilBound()
	b.assertTopology(pod)
	assert.NotEmpty(t, pod.Annotations[attemptKey])
	b.assertDevicesGiven(1)
	b.untilNoneMarked()
	b.assertDevicesGiven(1)
}

// A bind waits for the devices of an allocation by Prebind, as for those of an allocation by a scheduler.
func testAllocatedConditions(t *testing.T, w *world) {
	t.Parallel()
	w.needs(t, bindingConditions)
	b := newBench(t, w, nil)
	d := b.newDeviceDriver("owned-slow.example.com")
	d.publish("node-2", gen.BoundBy(gen.Device("nic-0"), attached, broken))
	b.resourceClaim(slowClaim, gen.RequestsDevices(d.name, 1))
	b.podWith(byHand, gen.UsesResourceClaim(slowClaim))
	bound := b.beginBind("node-2")
	b.untilResourceClaim(slowClaim, "allocated", allocated)
	b.untilEvent("WaitingForPreBind", "condition attached", d.name+"/node-2/nic-0")
	d.report(attached, "Attached", "")
	require.NoError(t, b.end(bound))
	d.assertReadyBefore(b.untilBound())
	b.assertDevicesGiven(1)
	b.untilNoneMarked()
}

// Claims that Prebind cannot allocate.
func testAllocationRefused(t *testing.T, w *world) {
	t.Parallel()
	b := newBench(t, w, nil)
	d := b.newDeviceDriver("owned-refused.example.com")
	d.publish("node-1", gen.Devices("gpu", 2)...)
	tests := map[string]struct {
		claim []gen.ResourceClaimOption
		says  []string
	}{
		"class of others": {
			claim: []gen.ResourceClaimOption{gen.RequestsDevices("others.example.com", 1)},
			says:  []string{"Prebind cannot allocate it", `"others.example.com"`, raceClass, "--resource-claims-allocate"},
		},
		"partly of others": {
			claim: []gen.ResourceClaimOption{gen.RequestsDevices(d.name, 1), gen.RequestsDevices("others.example.com", 1)},
			says:  []string{"Prebind cannot allocate it", `"others.example.com"`},
		},
		"more than there are": {
			claim: []gen.ResourceClaimOption{gen.RequestsDevices(d.name, 3)},
			says:  []string{"no free devices on node node-1 match its requests"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, w, nil)
			b.resourceClaim("gpu", tc.claim...)
			b.podWith(byHand, gen.UsesResourceClaim("gpu"))
			err := b.bindByHand(b.binding("node-1"))
			require.True(t, apierrors.IsForbidden(err), "%v", err)
			for _, words := range append(tc.says, "ResourceClaim "+b.ns+"/gpu") {
				assert.ErrorContains(t, err, words)
			}
			claim := b.untilResourceClaim("gpu", "left alone", released)
			assert.False(t, allocated(claim))
		})
	}
}
