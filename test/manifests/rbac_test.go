// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package manifests_test

import (
	"slices"
	"testing"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestRoles(t *testing.T) {
	objects := render(t, everything)
	read := []string{"get", "list", "watch"}
	readAndPatch := []string{"get", "list", "patch", "watch"}

	cases := map[string]struct {
		reason string
		want   map[string][]string
	}{
		"prebind": {
			reason: "the annotations travel in the answer, so Prebind itself only reads, and makes events",
			want: map[string][]string{
				"pods": read, "nodes": read, "events.k8s.io/events": {"create", "patch"}, "flowcontrol.apiserver.k8s.io/flowschemas": {"get"},
			},
		},
		"prebind-resource-claims": {
			reason: "it marks and reserves claims, and makes or deletes none",
			want: map[string][]string{
				"resource.k8s.io/resourceclaims":         readAndPatch,
				"resource.k8s.io/resourceclaims/status":  {"patch"},
				"resource.k8s.io/resourceclaims/binding": {"patch"},
			},
		},
		"prebind-volumebinding": {
			reason: "it marks claims and volumes for each other, and makes or deletes none",
			want: map[string][]string{
				"persistentvolumeclaims":              readAndPatch,
				"persistentvolumes":                   readAndPatch,
				"storage.k8s.io/storageclasses":       read,
				"storage.k8s.io/csidrivers":           read,
				"storage.k8s.io/csistoragecapacities": read,
				"storage.k8s.io/csinodes":             {"get", "list", "watch"},
			},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			role := get[*rbacv1.ClusterRole](t, objects, name)
			assert.Nil(t, role.AggregationRule, "an aggregated role grows by what others label")
			assert.Equal(t, tc.want, permissions(t, role.Rules), tc.reason)
		})
	}

	roles := all[*rbacv1.ClusterRole](objects)
	assert.Len(t, roles, len(cases), "every role is listed here: %v", names(roles))
}

func TestRoleInOwnNamespace(t *testing.T) {
	objects := render(t, everything)
	cases := map[string]struct {
		reason string
		want   map[string][]string
	}{
		"prebind": {
			reason: "replicas discover each other through leases only",
			want:   map[string][]string{"coordination.k8s.io/leases": {"create", "delete", "get", "list", "update"}},
		},
		"prebind-volumebinding": {
			reason: "the reservations of ReadWriteOncePod claims",
			want:   map[string][]string{"configmaps": {"create", "delete", "get", "list", "update", "watch"}},
		},
		"prebind-device": {
			reason: "the records of who holds the devices of a node",
			want:   map[string][]string{"configmaps": {"create", "delete", "get", "list", "update", "watch"}},
		},
	}
	roles := all[*rbacv1.Role](objects)
	require.Len(t, roles, len(cases), "every role is listed here: %v", names(roles))
	bindings := all[*rbacv1.RoleBinding](objects)
	require.Len(t, bindings, len(cases), "every role is bound")
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			role, binding := get[*rbacv1.Role](t, objects, name), get[*rbacv1.RoleBinding](t, objects, name)
			assert.Equal(t, namespace, role.Namespace)
			assert.Equal(t, tc.want, permissions(t, role.Rules), tc.reason)
			assert.Equal(t, namespace, binding.Namespace)
			assert.Equal(t, rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name}, binding.RoleRef)
			assert.Equal(t, []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: "prebind", Namespace: namespace}}, binding.Subjects)
		})
	}
}

func TestRoleBindings(t *testing.T) {
	objects := render(t, everything)
	bindings := all[*rbacv1.ClusterRoleBinding](objects)
	require.NotEmpty(t, bindings)

	for _, binding := range bindings {
		t.Run(binding.Name, func(t *testing.T) {
			assert.Equal(t, rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: binding.Name}, binding.RoleRef,
				"a binding is called like its role, and there is one for each")
			get[*rbacv1.ClusterRole](t, objects, binding.RoleRef.Name)
			assert.Equal(t, []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: "prebind", Namespace: namespace}}, binding.Subjects,
				"only Prebind has its permissions")
		})
	}
	assert.Len(t, bindings, len(all[*rbacv1.ClusterRole](objects)), "every role is bound")
}

func TestBaseAlone(t *testing.T) {
	objects := render(t, base)

	assert.Equal(t, []string{"prebind"}, names(all[*rbacv1.ClusterRole](objects)),
		"a plugin's permissions come with its component, so that one that is off has none")
	assert.Equal(t, []string{"prebind"}, names(all[*rbacv1.ClusterRoleBinding](objects)),
		"a plugin's permissions come with its component, so that one that is off has none")
	assert.Empty(t, all[*certmanagerv1.Certificate](objects), "certificates may come another way")
	assert.Empty(t, all[*certmanagerv1.Issuer](objects), "certificates may come another way")
}

const policyComponent = "config/webhook/plugins/policy"

// The component policy grants what the plugin itself needs. Operators grant the kinds that BindPolicies use.
func TestPolicyRoles(t *testing.T) {
	objects := render(t, policyComponent)
	read := []string{"get", "list", "watch"}
	role := get[*rbacv1.ClusterRole](t, objects, "prebind-policy")
	assert.Equal(t, map[string][]string{
		"policy.prebind.dev/bindpolicies": read, "policy.prebind.dev/bindpolicies/status": {"patch", "update"}, "namespaces": read, "persistentvolumeclaims": read,
		"admissionregistration.k8s.io/mutatingwebhookconfigurations": {"get"}, "admissionregistration.k8s.io/validatingwebhookconfigurations": {"get", "patch"},
	}, permissions(t, role.Rules), "Prebind does not change policies")
	resources := get[*rbacv1.ClusterRole](t, objects, "prebind-policy-resources")
	assert.Nil(t, resources.Rules, "kubectl apply would replace the rules of the aggregation")
	assert.Equal(t, &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{{MatchLabels: map[string]string{"rbac.prebind.dev/aggregate-to-policy": "true"}}}},
		resources.AggregationRule)
	bindings := all[*rbacv1.ClusterRoleBinding](objects)
	require.ElementsMatch(t, []string{role.Name, resources.Name}, names(bindings))
	for _, b := range bindings {
		assert.Equal(t, rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: b.Name}, b.RoleRef)
		assert.Equal(t, []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: "prebind", Namespace: namespace}}, b.Subjects)
	}
}

// permissions turns rules into verbs by resource, the core group without a
// prefix. It fails on what no role here may have.
func permissions(t *testing.T, rules []rbacv1.PolicyRule) map[string][]string {
	t.Helper()

	granted := map[string][]string{}
	for _, rule := range rules {
		assert.Empty(t, rule.NonResourceURLs, "no paths outside the API's resources")
		assert.NotContains(t, slices.Concat(rule.APIGroups, rule.Resources, rule.Verbs), "*", "no wildcards")
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				if group != "" {
					resource = group + "/" + resource
				}
				granted[resource] = append(granted[resource], rule.Verbs...)
			}
		}
	}
	for _, verbs := range granted {
		slices.Sort(verbs)
	}
	return granted
}

// End-to-end tests cover the effect of the policy.
func TestExplain(t *testing.T) {
	objects := renderWith(t, []string{everything}, []string{"explain"}, nil)
	role := get[*rbacv1.ClusterRole](t, objects, "prebind-explain")
	assert.Equal(t, map[string][]string{"pods": {"get"}, "pods/binding": {"create"}, "prebind.dev/explanations": {"create"}}, permissions(t, role.Rules))
	for _, binding := range all[*rbacv1.ClusterRoleBinding](objects) {
		assert.NotEqual(t, role.Name, binding.RoleRef.Name, "the operator decides who gets the role, and in which namespace")
	}
	webhook := get[*admissionregistrationv1.MutatingWebhookConfiguration](t, objects, "prebind").Webhooks[0]
	policy := get[*admissionregistrationv1.ValidatingAdmissionPolicy](t, objects, "explain.prebind.dev")
	assert.Equal(t, new(admissionregistrationv1.Fail), policy.Spec.FailurePolicy, "without a decision, the role would permit binds")
	assert.Equal(t, webhook.Rules[0].Resources, policy.Spec.MatchConstraints.ResourceRules[0].Resources, "both ways to bind a pod")
	binding := get[*admissionregistrationv1.ValidatingAdmissionPolicyBinding](t, objects, policy.Name)
	assert.Equal(t, policy.Name, binding.Spec.PolicyName)
	assert.Equal(t, []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny}, binding.Spec.ValidationActions)
	assert.Nil(t, binding.Spec.MatchResources, "it holds in every namespace, also in exempt ones")
	require.Len(t, webhook.MatchConditions, 1)
	assert.Equal(t, policy.Spec.Validations[0].Expression, webhook.MatchConditions[0].Expression, "Prebind must not prepare a bind that the policy rejects")
}
