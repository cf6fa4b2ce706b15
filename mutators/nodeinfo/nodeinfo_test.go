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
	cases := map[string]struct {
		reason      string
		annotations []string
		// says is part of the error. It is empty for no error.
		says string
	}{
		"None":      {reason: "the facts need no arguments"},
		"Some":      {reason: "an entry can set the key", annotations: []string{"example.com/rack-unit", "example.com/serial=serial-number"}},
		"Duplicate": {reason: "two annotations cannot become one key", annotations: []string{"a/unit", "b/unit"}, says: `node annotations "a/unit" and "b/unit" have the same key "unit"`},
		"Taken":     {reason: "a built-in key cannot be used", annotations: []string{"example.com/os-image"}, says: `node annotation "example.com/os-image" has the key "os-image", which node-info uses itself: set another key, such as example.com/os-image=other-key`},
		"TakenToo":  {reason: "a built-in key cannot be used even if the node lacks the fact", annotations: []string{"example.com/price=capacity-type"}, says: "capacity-type"},
		"Freed":     {reason: "the annotation can have another key", annotations: []string{"example.com/os-image=image"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			m, err := New(&Arguments{Annotations: tc.annotations})
			if tc.says != "" {
				require.ErrorContains(t, err, tc.says, tc.reason)
				assert.NotContains(t, err.Error(), "\n")
				return
			}
			require.NoError(t, err, tc.reason)
			assert.Equal(t, "node-info", m.Name())
		})
	}
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
	cases := map[string]struct {
		reason      string
		annotations []string
		node        *corev1.Node
		want        map[string]string
		missing     []string
	}{
		"Facts":        {reason: "each fact has its key, and addresses keep their order", node: node(), want: all},
		"Bare":         {reason: "empty facts are omitted", node: &corev1.Node{}, want: map[string]string{}},
		"InstanceType": {reason: "the stable label has priority", node: node(gen.Label("node.kubernetes.io/instance-type", "m7g.large"), gen.Label("beta.kubernetes.io/instance-type", "old")), want: with("instance-type", "m7g.large")},
		"BetaType":     {reason: "the beta label is a fallback", node: node(gen.Label("beta.kubernetes.io/instance-type", "m7g.large")), want: with("instance-type", "m7g.large")},
		"EmptyType":    {reason: "an empty stable label is ignored", node: node(gen.Label("node.kubernetes.io/instance-type", ""), gen.Label("beta.kubernetes.io/instance-type", "m7g.large")), want: with("instance-type", "m7g.large")},
		"CapacityType": {reason: "the capacity type comes from the labels", node: node(gen.Label("karpenter.sh/capacity-type", "spot")), want: with("capacity-type", "spot")},
		"Annotations": {
			reason: "configured annotations are copied, including empty values", annotations: []string{"example.com/unit", "example.com/serial=serial-number", "example.com/empty"},
			node: node(gen.Annotation("example.com/unit", "7 a/b"), gen.Annotation("example.com/serial", "X1"), gen.Annotation("example.com/empty", ""), gen.Annotation("other", "x")),
			want: with("unit", "7 a/b", "serial-number", "X1", "empty", ""),
		},
		"Missing": {
			reason: "missing annotations are reported", annotations: []string{"example.com/unit", "example.com/serial"},
			node: node(gen.Annotation("example.com/serial", "X1"), gen.Label("example.com/unit", "a label")), want: with("serial", "X1"),
			missing: []string{"the node has no annotation example.com/unit"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			m, err := New(&Arguments{Annotations: tc.annotations})
			require.NoError(t, err)
			before := tc.node.DeepCopy()
			out, err := m.Mutate(mutators.Input{Node: tc.node})
			require.NoError(t, err)
			assert.Equal(t, tc.want, out.Annotations, tc.reason)
			assert.Empty(t, out.Labels)
			assert.Equal(t, tc.missing, out.Missing, tc.reason)
			assert.Equal(t, before, tc.node, "the mutator does not change the node")
		})
	}
}

func TestCapacityType(t *testing.T) {
	cases := map[string]struct {
		reason string
		labels map[string]string
		want   string
	}{
		"None":           {reason: "a node without the labels has no capacity type"},
		"Karpenter":      {reason: "the value is not changed", labels: map[string]string{"karpenter.sh/capacity-type": "on-demand"}, want: "on-demand"},
		"EKS":            {reason: "the value is in lower case", labels: map[string]string{"eks.amazonaws.com/capacityType": "SPOT"}, want: "spot"},
		"GKESpot":        {reason: "the label is a flag", labels: map[string]string{"cloud.google.com/gke-spot": "true"}, want: "spot"},
		"GKENotSpot":     {reason: "a flag that is false is ignored", labels: map[string]string{"cloud.google.com/gke-spot": "false"}},
		"GKEPreemptible": {reason: "the label is a flag", labels: map[string]string{"cloud.google.com/gke-preemptible": "true"}, want: "preemptible"},
		"GKEStandard":    {reason: "the value is a synonym", labels: map[string]string{"cloud.google.com/gke-provisioning": "standard"}, want: "on-demand"},
		"GKEFlagFirst":   {reason: "the flag has priority", labels: map[string]string{"cloud.google.com/gke-provisioning": "standard", "cloud.google.com/gke-spot": "true"}, want: "spot"},
		"AKS":            {reason: "the value is not changed", labels: map[string]string{"kubernetes.azure.com/scalesetpriority": "spot"}, want: "spot"},
		"AKSRegular":     {reason: "the value is a synonym", labels: map[string]string{"kubernetes.azure.com/scalesetpriority": "regular"}, want: "on-demand"},
		"Lifecycle":      {reason: "the value is a synonym", labels: map[string]string{"node.kubernetes.io/lifecycle": "normal"}, want: "on-demand"},
		"LifecycleOld":   {reason: "the value is a synonym", labels: map[string]string{"node.kubernetes.io/lifecycle": "Ec2Spot"}, want: "spot"},
		"Order":          {reason: "the label of the provisioner has priority", labels: map[string]string{"node.kubernetes.io/lifecycle": "normal", "kubernetes.azure.com/scalesetpriority": "regular", "karpenter.sh/capacity-type": "spot"}, want: "spot"},
		"EmptySkipped":   {reason: "an empty label is ignored", labels: map[string]string{"karpenter.sh/capacity-type": "", "eks.amazonaws.com/capacityType": "SPOT"}, want: "spot"},
	}
	for name, tc := range cases {
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
