// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package nodeinfo

import (
	"maps"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/prebind/prebind/mutators"
	"github.com/prebind/prebind/test/gen"
)

func TestNew(t *testing.T) {
	m, err := New(&Arguments{Annotations: []string{"example.com/os-image=image"}})
	require.NoError(t, err, "the annotation can have another key")
	assert.Equal(t, "node-info", m.Name())
	_, err = New(&Arguments{Annotations: []string{"example.com/os-image"}})
	require.EqualError(t, err, `node annotation "example.com/os-image" has the key "os-image", which node-info uses itself: `+
		`set another key, such as example.com/os-image=other-key`)
	_, err = New(&Arguments{Annotations: []string{"a/unit", "b/unit"}})
	assert.ErrorContains(t, err, `node annotations "a/unit" and "b/unit" have the same key "unit"`)
}

// node returns a node with all facts except those from labels.
func node(options ...gen.NodeOption) *corev1.Node {
	n := gen.Node("node-a", options...)
	n.Spec.ProviderID = "aws:///eu-west-1a/i-0abc"
	n.Status.NodeInfo = corev1.NodeSystemInfo{
		MachineID: "secret", SystemUUID: "secret", BootID: "secret",
		Architecture: "arm64", OperatingSystem: "linux", OSImage: "Debian GNU/Linux 13 (trixie)", KernelVersion: "6.12.0",
		KubeletVersion: "v1.36.3", ContainerRuntimeVersion: "containerd://2.1.0",
	}
	n.Status.Addresses = []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: "10.0.0.1"},
		{Type: corev1.NodeExternalIP, Address: "192.0.2.1"},
		{Type: corev1.NodeInternalIP, Address: "fd00::1"},
		{Type: corev1.NodeHostName, Address: "ip-10-0-0-1"},
		{Type: corev1.NodeInternalDNS, Address: "a.internal"},
		{Type: corev1.NodeExternalDNS, Address: "a.example.com"},
		{Type: corev1.NodeExternalDNS, Address: ""},
		{Type: corev1.NodeExternalDNS, Address: "b.example.com"},
		{Type: "Unheard", Address: "x"},
	}
	return n
}

func TestMutate(t *testing.T) {
	all := map[string]string{
		"provider-id": "aws:///eu-west-1a/i-0abc", "architecture": "arm64", "operating-system": "linux", "os-image": "Debian GNU/Linux 13 (trixie)",
		"kernel-version": "6.12.0", "kubelet-version": "v1.36.3", "container-runtime-version": "containerd://2.1.0",
		"internal-ip": "10.0.0.1,fd00::1", "external-ip": "192.0.2.1", "internal-dns": "a.internal", "external-dns": "a.example.com,b.example.com", "hostname": "ip-10-0-0-1",
	}
	with := func(kv ...string) map[string]string {
		m := maps.Clone(all)
		for i := 0; i < len(kv); i += 2 {
			m[kv[i]] = kv[i+1]
		}
		return m
	}
	for name, tc := range map[string]struct {
		reason      string
		annotations []string
		node        *corev1.Node
		want        map[string]string
		missing     []string
	}{
		"Facts":        {reason: "each fact has its key, and addresses keep their order", node: node(), want: all},
		"Bare":         {reason: "empty facts are omitted", node: &corev1.Node{}, want: map[string]string{}},
		"InstanceType": {reason: "the stable label has priority", node: node(gen.Label("node.kubernetes.io/instance-type", "m7g.large"), gen.Label("beta.kubernetes.io/instance-type", "old")), want: with("instance-type", "m7g.large")},
		"EmptyType":    {reason: "an empty stable label is ignored", node: node(gen.Label("node.kubernetes.io/instance-type", ""), gen.Label("beta.kubernetes.io/instance-type", "m7g.large")), want: with("instance-type", "m7g.large")},
		"CapacityType": {reason: "the capacity type comes from the labels", node: node(gen.Label("karpenter.sh/capacity-type", "spot")), want: with("capacity-type", "spot")},
		"Annotations": {
			reason:      "configured annotations are copied, including empty values, and missing ones are reported",
			annotations: []string{"example.com/unit", "example.com/serial=serial-number", "example.com/empty", "example.com/row"},
			node: node(gen.Annotation("example.com/unit", "7 a/b"), gen.Annotation("example.com/serial", "X1"), gen.Annotation("example.com/empty", ""),
				gen.Label("example.com/row", "x")),
			want: with("unit", "7 a/b", "serial-number", "X1", "empty", ""), missing: []string{"the node has no annotation example.com/row"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := New(&Arguments{Annotations: tc.annotations})
			require.NoError(t, err)
			before := tc.node.DeepCopy()
			out, err := m.Mutate(mutators.Input{Node: tc.node})
			require.NoError(t, err)
			assert.Equal(t, mutators.Output{Annotations: tc.want, Missing: tc.missing}, out, tc.reason)
			assert.Equal(t, before, tc.node, "the mutator does not change the node")
		})
	}
}

func TestCapacityType(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, want string
		labels       map[string]string
	}{
		"GKENotSpot":     {reason: "a flag that is false is ignored", labels: map[string]string{"cloud.google.com/gke-spot": "false"}},
		"GKEPreemptible": {reason: "the label is a flag", labels: map[string]string{"cloud.google.com/gke-preemptible": "true"}, want: "preemptible"},
		"GKEStandard":    {reason: "the value is a synonym", labels: map[string]string{"cloud.google.com/gke-provisioning": "standard"}, want: "on-demand"},
		"GKEFlagFirst":   {reason: "the flag has priority", labels: map[string]string{"cloud.google.com/gke-provisioning": "standard", "cloud.google.com/gke-spot": "true"}, want: "spot"},
		"AKSRegular":     {reason: "the value is a synonym", labels: map[string]string{"kubernetes.azure.com/scalesetpriority": "regular"}, want: "on-demand"},
		"Lifecycle":      {reason: "the value is a synonym", labels: map[string]string{"node.kubernetes.io/lifecycle": "normal"}, want: "on-demand"},
		"LifecycleOld":   {reason: "the value is a synonym", labels: map[string]string{"node.kubernetes.io/lifecycle": "Ec2Spot"}, want: "spot"},
		"Order":          {reason: "the label of the provisioner has priority", labels: map[string]string{"node.kubernetes.io/lifecycle": "normal", "kubernetes.azure.com/scalesetpriority": "regular", "karpenter.sh/capacity-type": "spot"}, want: "spot"},
		"EmptySkipped":   {reason: "an empty label is ignored", labels: map[string]string{"karpenter.sh/capacity-type": "", "eks.amazonaws.com/capacityType": "SPOT"}, want: "spot"},
	} {
		t.Run(name, func(t *testing.T) {
			n := &corev1.Node{}
			n.Labels = tc.labels
			assert.Equal(t, tc.want, capacityType(n), tc.reason)
		})
	}
}

func TestFacts_ValidKeys(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range facts {
		assert.Empty(t, validation.IsQualifiedName("node-info.prebind.dev/"+f.key))
		assert.False(t, seen[f.key], "%s is unique", f.key)
		seen[f.key] = true
	}
}
