// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package bindpolicy

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	discoveryfake "k8s.io/client-go/discovery/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/prebind/prebind/policy/v1alpha1"
)

// errForbidden is the answer to a watch without a role.
var errForbidden = apierrors.NewForbidden(schema.GroupResource{Group: "storage.k8s.io", Resource: "csinodes"}, "", errors.New("no role"))

func TestWatchProblem(t *testing.T) {
	cases := map[string]struct {
		reason string
		err    error
		want   string
		text   string
	}{
		"Forbidden": {
			reason: "the message contains the missing rule", err: fmt.Errorf("selection: %w", errForbidden), want: v1alpha1.ReasonForbidden,
			text: "spec.resources[csinode]: selection: csinodes.storage.k8s.io is forbidden: no role; " +
				`apply a ClusterRole with the label rbac.prebind.dev/aggregate-to-policy: "true" and the rule {apiGroups: ["storage.k8s.io"], resources: [csinodes], verbs: [get, list, watch]}`,
		},
		"UnknownKind": {
			reason: "the kind can be installed later", want: v1alpha1.ReasonUnknownKind,
			err: &meta.NoKindMatchError{GroupKind: schema.GroupKind{Group: "example.com", Kind: "Rack"}, SearchedVersions: []string{"v1"}},
			text: "spec.resources[csinode]: the API server does not serve the kind: " +
				`no matches for kind "Rack" in version "example.com/v1"; install it, or correct apiVersion and kind`,
		},
		"Watch": {
			reason: "the API server may be slow", err: context.DeadlineExceeded, want: v1alpha1.ReasonWatchFailed,
			text: "spec.resources[csinode]: the watch of CSINode objects did not begin: context deadline exceeded; Prebind tries again",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := watchProblem("spec.resources[csinode]", "CSINode", tc.err)
			assert.Equal(t, tc.want, got, tc.reason)
			require.EqualError(t, err, tc.text)
		})
	}
}

func TestRuleFor(t *testing.T) {
	assert.Equal(t, ` and the rule {apiGroups: ["storage.k8s.io"], resources: [csinodes], verbs: [get, list, watch]}`, ruleFor(errForbidden))
	assert.Empty(t, ruleFor(&apierrors.StatusError{ErrStatus: metav1.Status{Reason: metav1.StatusReasonForbidden}}))
}

// An object by name is never found with a namespace that its kind does not have, or without one that it has.
func TestCheckScopes(t *testing.T) {
	kinds := &clienttesting.Fake{Resources: []*metav1.APIResourceList{
		{GroupVersion: "v1", APIResources: []metav1.APIResource{
			{Name: "pods/binding", Kind: "ConfigMap"}, {Name: "configmaps", Kind: "ConfigMap", Namespaced: true}, {Name: "nodes", Kind: "Node"},
		}},
		{GroupVersion: "example.com/v1", APIResources: []metav1.APIResource{{Name: "racks", Kind: "Rack"}}},
	}}
	const namespaced = "spec.resources[x]: the kind ConfigMap is namespaced; add namespace or namespaceExpression"
	const cluster = "the kind Rack is cluster-scoped; remove namespace and namespaceExpression"
	for name, tc := range map[string]struct {
		reason, resource, want string
	}{
		"NoNamespace":   {reason: "the object is never found", resource: "apiVersion: v1, kind: ConfigMap, nameExpression: \"'a'\"", want: namespaced},
		"Namespace":     {reason: "the name is complete", resource: "apiVersion: v1, kind: ConfigMap, nameExpression: \"'a'\", namespace: b"},
		"Expression":    {reason: "the name is complete", resource: "apiVersion: v1, kind: ConfigMap, nameExpression: \"'a'\", namespaceExpression: pod.metadata.namespace"},
		"All":           {reason: "a list can contain all namespaces", resource: "apiVersion: v1, kind: ConfigMap, labelSelector: {}"},
		"Cluster":       {reason: "the name is complete", resource: "apiVersion: v1, kind: Node, nameExpression: \"'a'\""},
		"ClusterIn":     {reason: "the object is never found", resource: "apiVersion: example.com/v1, kind: Rack, nameExpression: \"'a'\", namespaceExpression: pod.metadata.namespace", want: "spec.resources[x]: " + cluster},
		"ClusterListIn": {reason: "the namespace has no effect", resource: "apiVersion: example.com/v1, kind: Rack, labelSelector: {}, namespace: a", want: "spec.resources[x]: " + cluster},
		"Unknown":       {reason: "the scope is unknown", resource: "apiVersion: example.com/v2, kind: Rack, nameExpression: \"'a'\", namespace: a"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := prepareWorld(t)
				w.Plugin.h.Discovery = &discoveryfake.FakeDiscovery{Fake: kinds}
				w.begin()
				w.put(policyOf(t, "a", "resources: [{name: x, "+tc.resource+"}]\nvalidations: [{expression: 'dyn(resources.x) != null'}]"))
				got, _ := w.status("a")
				if tc.want == "" {
					assert.Equal(t, "InForce: generation 1 is in force", got, tc.reason)
					return
				}
				assert.Equal(t, "CompileError: "+tc.want+follows, got, tc.reason)
			})
		})
	}
}
