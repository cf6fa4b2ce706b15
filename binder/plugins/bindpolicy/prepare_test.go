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
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	discoveryfake "k8s.io/client-go/discovery/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/policy"
	"github.com/prebind/prebind/policy/v1alpha1"
)

// errForbidden is the answer to a watch without a role.
var errForbidden = apierrors.NewForbidden(schema.GroupResource{Group: "storage.k8s.io", Resource: "csinodes"}, "", errors.New("no role"))

func TestProblems(t *testing.T) {
	s := named{&watch{Selection: framework.Selection{Example: &storagev1.CSINode{}}}, "spec.resources[csinode]"}
	cases := map[string]struct {
		reason string
		got    *problem
		want   problem
	}{
		"Compile": {
			reason: "the compiler gives the reason",
			got:    problemOf(errors.Join(&policy.Problem{Reason: v1alpha1.ReasonKeyNotAllowed, Field: "spec.mutations.labels[0].key", Message: "not allowed"}, errors.New("two"))),
			want:   problem{reason: v1alpha1.ReasonKeyNotAllowed, message: "spec.mutations.labels[0].key: not allowed; two"},
		},
		"Panic": {
			reason: "an error without a reason is an error of the compiler", got: problemOf(errors.New("the compiler panicked")),
			want: problem{reason: v1alpha1.ReasonCompileError, message: "the compiler panicked"},
		},
		"Forbidden": {
			reason: "the message contains the missing rule",
			got:    watchProblem(s, fmt.Errorf("selection: %w", errForbidden)),
			want: problem{reason: v1alpha1.ReasonForbidden, passing: true, message: "spec.resources[csinode]: selection: csinodes.storage.k8s.io is forbidden: no role; " +
				`apply a ClusterRole with the label rbac.prebind.dev/aggregate-to-policy: "true" and the rule {apiGroups: ["storage.k8s.io"], resources: [csinodes], verbs: [get, list, watch]}`},
		},
		"UnknownKind": {
			reason: "the kind can be installed later",
			got:    watchProblem(s, &meta.NoKindMatchError{GroupKind: schema.GroupKind{Group: "example.com", Kind: "Rack"}, SearchedVersions: []string{"v1"}}),
			want: problem{reason: v1alpha1.ReasonUnknownKind, passing: true, message: "spec.resources[csinode]: the API server does not serve the kind: " +
				`no matches for kind "Rack" in version "example.com/v1"; install it, or correct apiVersion and kind`},
		},
		"Watch": {
			reason: "the API server may be slow", got: watchProblem(s, context.DeadlineExceeded),
			want: problem{reason: v1alpha1.ReasonWatchFailed, passing: true, message: "spec.resources[csinode]: the watch of CSINode objects did not begin: context deadline exceeded; Prebind tries again"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) { assert.Equal(t, tc.want, *tc.got, tc.reason) })
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
				assert.Equal(t, "CompileError: "+tc.want+"; the policy is not in force", got, tc.reason)
				assert.Empty(t, w.used(), tc.reason)
			})
		})
	}
}
