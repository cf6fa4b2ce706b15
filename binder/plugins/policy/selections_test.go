// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/policy"
	"github.com/prebind/prebind/test/gen"
)

func TestSelectionOf(t *testing.T) {
	c, err := policy.Compile(policyOf(t, "a", `
matchConstraints: {namespaceSelector: {matchLabels: {team: ml}}}
resources:
- {name: csinode, apiVersion: storage.k8s.io/v1, kind: CSINode, nameExpression: node.metadata.name}
- {name: again, apiVersion: storage.k8s.io/v1, kind: CSINode, nameExpression: "'other'"}
- {name: same, apiVersion: storage.k8s.io/v1, kind: CSINode, nameExpression: "node.metadata.name + ''"}
- {name: agents, apiVersion: v1, kind: Pod, namespace: kube-system, labelSelector: {matchLabels: {app: cni}}, onNode: true}
- {name: pods, apiVersion: v1, kind: Pod, namespaceExpression: pod.metadata.namespace, labelSelector: {}}
- {name: near, apiVersion: v1, kind: Pod, namespaceExpression: pod.metadata.namespace, onNode: true}
- {name: racks, apiVersion: example.com/v1, kind: Rack, labelSelector: {matchLabels: {ready: "yes"}}}
- {name: rack, apiVersion: example.com/v1, kind: Rack, nameExpression: node.metadata.name}
- {name: ours, apiVersion: example.com/v1, kind: Rack, nameExpression: node.metadata.name, namespaceExpression: pod.metadata.namespace}
- {name: unused, apiVersion: v1, kind: Secret, nameExpression: "'token'", namespace: default}
validations:
- {expression: "resources.csinode.spec.drivers[0].name == resources.again.spec.drivers[0].name + resources.same.spec.drivers[0].name && resources.agents.size() + resources.racks.size() >= claims.size()"}
`), policy.Options{})
	require.NoError(t, err)
	names := map[string]string{}
	for _, r := range c.Reads() {
		field, s := r.Path, selectionOf(r)
		require.NoError(t, s.Check())
		if field == "spec.resources[agents]" {
			trimmed, err := s.Transform(gen.Pod("cni", gen.BoundTo("node-a")))
			require.NoError(t, err)
			pod, ok := trimmed.(*corev1.Pod)
			require.True(t, ok)
			assert.Equal(t, "node-a", policy.NodeNameOf(pod), "the index needs the field in the cache")
		}
		if field == "spec.resources[again]" {
			require.NotNil(t, s.Fields)
			assert.Equal(t, "metadata.name=other", s.Fields.String(), "a tenant cannot fill the cache with objects of other names")
		} else if field != "spec.resources[unused]" {
			assert.Nil(t, s.Fields, field)
		}
		names[field] = s.Name
	}
	assert.Equal(t, map[string]string{
		"claims":                  "policy/v1 PersistentVolumeClaim by name",
		"spec.resources[csinode]": "policy/storage.k8s.io/v1 CSINode by name",
		"spec.resources[again]":   "policy/storage.k8s.io/v1 CSINode with name \"other\"",
		"spec.resources[same]":    "policy/storage.k8s.io/v1 CSINode by name",
		"spec.resources[agents]":  "policy/v1 Pod by node; namespace kube-system; labels app=cni",
		"spec.resources[racks]":   "policy/example.com/v1 Rack all; labels ready=yes",
		"spec.resources[rack]":    "policy/example.com/v1 Rack by name; cluster-scoped",
		"spec.resources[ours]":    "policy/example.com/v1 Rack by name; namespaced",
		"spec.resources[unused]":  "policy/v1 Secret with name \"token\"; namespace default",
		"spec.resources[pods]":    "policy/v1 Pod by namespace",
		"spec.resources[near]":    "policy/v1 Pod by namespace and node",
	}, names, "resources that differ only in their names share a watch")
}

func TestSelectionOf_ByNode(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, want string
		kind         schema.GroupVersionKind
		object       client.Object
	}{
		"ResourceSlice": {reason: "the API server selects slices by node, and the field is a pointer", kind: resourcev1.SchemeGroupVersion.WithKind("ResourceSlice"), object: gen.ResourceSlice("driver", "n"), want: "n"},
		"NoNode":        {reason: "a slice can have no node", kind: resourcev1.SchemeGroupVersion.WithKind("ResourceSlice"), object: &resourcev1.ResourceSlice{}},
		"Custom": {
			reason: "the fields of custom resources are unknown", kind: schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Agent"},
			object: &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"nodeName": "n"}}}, want: "n",
		},
		"CustomNoField": {
			reason: "another type of the field is not a node", kind: schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Agent"},
			object: &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"nodeName": int64(1)}}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := selectionOf(&policy.Resource{Kind: tc.kind, OnNode: true, Labels: labels.Nothing()})
			require.NoError(t, s.Check())
			assert.Equal(t, tc.want, s.ValueOf(tc.object), tc.reason)
		})
	}
}

func TestTyped(t *testing.T) {
	assert.IsType(t, &storagev1.CSINodeList{}, typed[client.ObjectList](storagev1.SchemeGroupVersion.WithKind("CSINodeList"), nil))
	custom := typed[client.Object](schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Rack"}, &unstructured.Unstructured{})
	assert.Equal(t, "Rack.example.com", framework.KindOf(custom))
}
