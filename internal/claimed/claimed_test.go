// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package claimed

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/framework/frameworktest"
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

// reservedForGroup returns the claim with a reservation for the PodGroup of the pod.
func reservedForGroup(c *resourcev1.ResourceClaim) *resourcev1.ResourceClaim {
	c.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{APIGroup: "scheduling.k8s.io", Resource: "podgroups", Name: "team", UID: "group-1"}}
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

func TestTrim(t *testing.T) {
	long := strings.Repeat("x", 10<<10)
	meta := func(options ...gen.Meta) *resourcev1.ResourceClaim {
		c := claim("own", result("gpu", "gpu-0"))
		for _, o := range options {
			o(&c.ObjectMeta)
		}
		return c
	}
	status := func(change func(*resourcev1.ResourceClaimStatus)) *resourcev1.ResourceClaim {
		c := meta()
		c.Status.Devices = []resourcev1.AllocatedDeviceStatus{{Device: "gpu-0", Conditions: []metav1.Condition{{Type: "Attached"}}}}
		change(&c.Status)
		return c
	}
	group := []metav1.OwnerReference{{APIVersion: "scheduling.k8s.io/v1alpha2", Kind: "PodGroup", Name: "team", UID: "group", Controller: new(true)}}
	inGroup := func(c *metav1.ObjectMeta) { c.OwnerReferences = group }
	mark := gen.Annotation("resource-claims.prebind.dev/pod-1.here-1", "{}")
	var marks []gen.Meta
	for i := range 7 {
		marks = append(marks, gen.Annotation(fmt.Sprintf("resource-claims.prebind.dev/pod-%d.here-1", i), long))
	}
	spec := meta()
	spec.Spec.Devices.Requests = []resourcev1.DeviceRequest{{Name: long}}
	for name, tc := range map[string]struct {
		reason      string
		claim, want *resourcev1.ResourceClaim
	}{
		"Annotations": {reason: "the plugin reads only its marks", claim: meta(mark, gen.Annotation("example.com/note", long)), want: meta(mark)},
		"Marks":       {reason: "a tenant can write marks of any size", claim: meta(marks...), want: meta(marks[:6]...)},
		"LongMark": {
			reason: "it leaves room for the others", want: meta(mark),
			claim: meta(mark, gen.Annotation("resource-claims.prebind.dev/a.a", strings.Repeat(long, 7))),
		},
		"Labels":     {reason: "plugins do not read labels", claim: meta(gen.Label("example.com/note", long)), want: meta()},
		"Finalizers": {reason: "plugins do not read finalizers", claim: meta(func(m *metav1.ObjectMeta) { m.Finalizers = []string{long} }), want: meta()},
		"Owner":      {reason: "the claim of a template belongs to its pod", claim: meta(gen.OwnedBy("Pod", "web", "pod-1")), want: meta(gen.OwnedBy("Pod", "web", "pod-1"))},
		"Group":      {reason: "the name and the kind of a PodGroup decide", claim: meta(inGroup), want: meta(inGroup)},
		"LongOwner":  {reason: "a tenant can write the owner", claim: meta(gen.OwnedBy("Pod", "web", types.UID(long))), want: meta()},
		"Others": {reason: "only the controller decides", want: meta(inGroup), claim: meta(func(m *metav1.ObjectMeta) {
			m.OwnerReferences = append([]metav1.OwnerReference{{Kind: "Note", Name: long}}, group...)
		})},
		"Deleted": {reason: "a claim that is being deleted is rejected", claim: meta(gen.Terminating()), want: meta(gen.Terminating(), func(m *metav1.ObjectMeta) { m.Finalizers = nil })},
		"Spec":    {reason: "the status has the result", claim: spec, want: meta()},
		"Config": {reason: "only drivers read it", want: status(func(*resourcev1.ResourceClaimStatus) {}), claim: status(func(s *resourcev1.ResourceClaimStatus) {
			s.Allocation.Devices.Config = []resourcev1.DeviceAllocationConfiguration{{Requests: []string{long}}}
		})},
		"Data": {reason: "plugins read only the conditions of devices", want: status(func(*resourcev1.ResourceClaimStatus) {}), claim: status(func(s *resourcev1.ResourceClaimStatus) {
			s.Devices[0].Data, s.Devices[0].NetworkData = &runtime.RawExtension{Raw: []byte(long)}, &resourcev1.NetworkDeviceData{InterfaceName: long}
		})},
		"Unallocated": {reason: "the claim has no status", claim: claim("own"), want: claim("own")},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.want.Annotations == nil {
				tc.want.Annotations = map[string]string{}
			}
			for range 2 { // An informer can transform an object twice.
				assert.Equal(t, tc.want, Trim(tc.claim), tc.reason)
			}
		})
	}
}

func TestDevices(t *testing.T) {
	byName := func(name, claim string) corev1.PodResourceClaim {
		return corev1.PodResourceClaim{Name: name, ResourceClaimName: new(claim)}
	}
	shared, sharedDevice := result("gpu", "gpu-0"), device("a.gpu", "gpu-0")
	shared.ShareID, sharedDevice.Share = new(types.UID("share-1")), "share-1"
	byTemplate := corev1.PodResourceClaim{Name: "made", ResourceClaimTemplateName: new("template")}
	cases := map[string]struct {
		reason       string
		claims       []corev1.PodResourceClaim
		statuses     []corev1.PodResourceClaimStatus
		cached, live []client.Object
		want         []mutators.Device
		says         []string
	}{
		"None": {reason: "a pod without claims has no devices"},
		"Allocated": {
			reason: "devices are in the order of the claims and their requests",
			claims: []corev1.PodResourceClaim{byName("b", "shared"), byName("a", "own")},
			cached: []client.Object{claim("own", result("gpu", "gpu-0"), result("gpu", "gpu-1")), claim("shared", result("nic/fast", "eth0"))},
			want:   []mutators.Device{device("b.nic/fast", "eth0"), device("a.gpu", "gpu-0"), device("a.gpu", "gpu-1")},
		},
		"Share": {
			reason: "other pods have other shares of the device",
			claims: []corev1.PodResourceClaim{byName("a", "own")},
			cached: []client.Object{claim("own", shared)},
			want:   []mutators.Device{sharedDevice},
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
		"EarlierGroup": {
			reason: "a reservation for the PodGroup may be for an earlier one of this name",
			claims: []corev1.PodResourceClaim{byName("a", "own")},
			cached: []client.Object{reservedForGroup(claim("own", result("gpu", "gpu-0")))},
			live:   []client.Object{claim("own", result("gpu", "gpu-1"))},
			want:   []mutators.Device{device("a.gpu", "gpu-1")},
		},
		"Unknown": {
			reason: "the error names the missing claim, and the others are returned",
			claims: []corev1.PodResourceClaim{byName("a", "missing"), byName("b", "bare"), byTemplate, byName("c", "own")},
			cached: []client.Object{claim("own", result("gpu", "gpu-0"))},
			live:   []client.Object{claim("bare")},
			want:   []mutators.Device{device("c.gpu", "gpu-0")},
			says:   []string{`claim "a" of the pod: ResourceClaim default/missing does not exist`, `"b" of the pod: not allocated`, `"made"`},
		},
		"TooMany": {
			reason: "a tenant can refer to a claim any number of times",
			claims: slices.Repeat([]corev1.PodResourceClaim{byName("a", "own")}, 129),
			cached: []client.Object{claim("own", result("gpu", "gpu-0"))},
			says:   []string{"129 claims"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			pod := gen.Pod("web", gen.UID("pod-1"))
			pod.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: new("team")}
			pod.Spec.ResourceClaims, pod.Status.ResourceClaimStatuses = tc.claims, tc.statuses
			for _, o := range tc.cached {
				_, err := framework.Transform(Trim)(o)
				require.NoError(t, err)
			}
			reader := func(objects []client.Object) client.Reader {
				return fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(objects...).Build()
			}
			got, err := Devices(t.Context(), reader(tc.cached), reader(tc.live), pod)
			assert.Equal(t, tc.want, got, tc.reason)
			if tc.says == nil {
				require.NoError(t, err)
			}
			for _, text := range tc.says {
				require.ErrorContains(t, err, text)
			}
		})
	}
}

func TestDevices_APIServerFails(t *testing.T) {
	pod := gen.Pod("web", gen.UID("pod-1"))
	for _, name := range []string{"missing", "slow", "own"} {
		pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, corev1.PodResourceClaim{Name: name, ResourceClaimName: &name})
	}
	live := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(claim("own", result("gpu", "gpu-0"))).WithInterceptorFuncs(
		interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
			if key.Name == "slow" {
				return apierrors.NewServiceUnavailable("restarting")
			}
			return c.Get(ctx, key, o)
		}}).Build()
	got, err := Devices(t.Context(), fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).Build(), live, pod)
	assert.Equal(t, []mutators.Device{device("own.gpu", "gpu-0")}, got)
	assert.True(t, frameworktest.IsKind(err, framework.KindWait), "a retry can succeed: %v", err)
}
