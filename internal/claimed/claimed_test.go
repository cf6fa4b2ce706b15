// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package claimed

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/prebind/prebind/mutators"
	"github.com/prebind/prebind/test/gen"
)

func claim(name string, results ...resourcev1.DeviceRequestAllocationResult) *resourcev1.ResourceClaim {
	c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	if results != nil {
		c.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: "web", UID: "pod-1"}}
		c.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{Results: results}}
	}
	return c
}

func stale(c *resourcev1.ResourceClaim) *resourcev1.ResourceClaim {
	c.Status.ReservedFor = nil
	return c
}

func result(request, device string) resourcev1.DeviceRequestAllocationResult {
	return resourcev1.DeviceRequestAllocationResult{Request: request, Driver: "gpu.example.com", Pool: "node-a", Device: device}
}

func device(request, name string) mutators.Device {
	return mutators.Device{Request: request, Driver: "gpu.example.com", Pool: "node-a", Name: name}
}

func TestDevices(t *testing.T) {
	byName := func(name, claim string) corev1.PodResourceClaim {
		return corev1.PodResourceClaim{Name: name, ResourceClaimName: new(claim)}
	}
	byTemplate := corev1.PodResourceClaim{Name: "made", ResourceClaimTemplateName: new("template")}
	cases := map[string]struct {
		reason       string
		claims       []corev1.PodResourceClaim
		statuses     []corev1.PodResourceClaimStatus
		cached, live []client.Object
		want         []mutators.Device
		says         string
	}{
		"None": {reason: "a pod without claims has no devices"},
		"Allocated": {
			reason: "devices are in the order of the claims and their requests",
			claims: []corev1.PodResourceClaim{byName("b", "shared"), byName("a", "own")},
			cached: []client.Object{claim("own", result("gpu", "gpu-0"), result("gpu", "gpu-1")), claim("shared", result("nic/fast", "eth0"))},
			want:   []mutators.Device{device("b.nic/fast", "eth0"), device("a.gpu", "gpu-0"), device("a.gpu", "gpu-1")},
		},
		"ByTemplate": {
			reason:   "the pod's status names the claim of a template",
			claims:   []corev1.PodResourceClaim{byTemplate},
			statuses: []corev1.PodResourceClaimStatus{{Name: "made", ResourceClaimName: new("made-x7")}},
			cached:   []client.Object{claim("made-x7", result("gpu", "gpu-2"))},
			want:     []mutators.Device{device("made.gpu", "gpu-2")},
		},
		"TemplateNeedsNone": {
			reason:   "a template may need no claim",
			claims:   []corev1.PodResourceClaim{byTemplate},
			statuses: []corev1.PodResourceClaimStatus{{Name: "made"}},
		},
		"CacheIsBehind": {
			reason: "the cache lacks the new allocation",
			claims: []corev1.PodResourceClaim{byName("a", "own"), byName("b", "new")},
			cached: []client.Object{claim("own")},
			live:   []client.Object{claim("own", result("gpu", "gpu-0")), claim("new", result("gpu", "gpu-1"))},
			want:   []mutators.Device{device("a.gpu", "gpu-0"), device("b.gpu", "gpu-1")},
		},
		"AllocatedAnew": {
			reason: "without a reservation the allocation may be an old one",
			claims: []corev1.PodResourceClaim{byName("a", "own")},
			cached: []client.Object{stale(claim("own", result("gpu", "gpu-0")))},
			live:   []client.Object{claim("own", result("gpu", "gpu-1"))},
			want:   []mutators.Device{device("a.gpu", "gpu-1")},
		},
		"Unknown": {
			reason: "the error names the missing claim, and the others are returned",
			claims: []corev1.PodResourceClaim{byName("a", "missing"), byName("b", "bare"), byTemplate, byName("c", "own")},
			cached: []client.Object{claim("own", result("gpu", "gpu-0"))},
			live:   []client.Object{claim("bare")},
			want:   []mutators.Device{device("c.gpu", "gpu-0")},
			says:   `claim "a" of the pod: reading ResourceClaim`,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			pod := gen.Pod("web", gen.UID("pod-1"))
			pod.Spec.ResourceClaims, pod.Status.ResourceClaimStatuses = tc.claims, tc.statuses
			reader := func(objects []client.Object) client.Reader {
				return fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(objects...).Build()
			}
			got, err := Devices(t.Context(), reader(tc.cached), reader(tc.live), pod)
			assert.Equal(t, tc.want, got, tc.reason)
			if tc.says == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, tc.says)
			assert.ErrorContains(t, err, `"b" of the pod: not allocated`)
			assert.ErrorContains(t, err, `"made"`)
		})
	}
}
