// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package files

import (
	"cmp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/prebind/prebind/internal/policy"
	"github.com/prebind/prebind/policy/v1alpha1"
)

// withSpec returns a policy with the spec.
func withSpec(spec string) string {
	return "apiVersion: policy.prebind.dev/v1alpha1\nkind: BindPolicy\nmetadata: {name: p}\nspec:\n  " + strings.ReplaceAll(spec, "\n", "\n  ") + "\n"
}

// withResource returns a policy that reads objects of the kind.
func withResource(apiVersion, kind, selection string) string {
	return withSpec("resources: [{name: x, apiVersion: " + apiVersion + ", kind: " + kind + ", " + selection + "}]\nvalidations: [{expression: dyn(resources.x) != null}]")
}

// checked parses and checks a file.
func checked(t *testing.T, content string, o policy.Options) ([]*Policy, error) {
	t.Helper()
	documents, err := Parse("p.yaml", []byte(content))
	require.NoError(t, err)
	return Check(t.Context(), documents, o)
}

const oneRule = "validations: [{expression: 'true'}]"

func TestCheck(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, content string
		// They are those of the first problem. Without them, the policy is ready.
		field, message, reasonOf string
	}{
		"UnknownField":  {reason: "the API server would drop an unknown field without an error", content: withSpec(oneRule + "\nvalidation: x"), field: "spec.validation", message: "unknown field", reasonOf: ReasonInvalid},
		"WrongType":     {reason: "the schema has types", content: withSpec(oneRule + "\nmode: [Audit]"), field: "spec.mode", message: "must be of type string", reasonOf: ReasonInvalid},
		"TimeoutUnit":   {reason: "a duration has no days", content: withSpec("waitFor: [{name: a, expression: 'true', timeout: 1d}]"), field: "spec.waitFor[0].timeout", message: "; write a duration, such as 30s or 4m", reasonOf: ReasonInvalid},
		"TimeoutType":   {reason: "a duration has a unit", content: withSpec("waitFor: [{name: a, expression: 'true', timeout: 2}]"), field: "spec.waitFor[0].timeout", message: "; write a duration, such as 30s or 4m", reasonOf: ReasonInvalid},
		"NoName":        {reason: "the API server requires a name", content: strings.Replace(withSpec(oneRule), "name: p", "labels: {}", 1), field: "metadata.name", message: "required", reasonOf: ReasonInvalid},
		"BooleanName":   {reason: "YAML reads some texts as other types", content: strings.Replace(withSpec(oneRule), "name: p", "name: on", 1), field: "metadata.name", message: "a string is required; quote it", reasonOf: ReasonInvalid},
		"PluralKind":    {reason: "a kind of a built-in group must exist", content: withResource("v1", "Pods", "labelSelector: {}"), field: "spec.resources[0]", message: "v1 has no kind Pods; correct apiVersion and kind", reasonOf: v1alpha1.ReasonUnknownKind},
		"NoObject":      {reason: "a list is not an object", content: withResource("v1", "PodList", "labelSelector: {}"), field: "spec.resources[0]", message: "v1 has no kind PodList; correct apiVersion and kind", reasonOf: v1alpha1.ReasonUnknownKind},
		"Prefix":        {reason: "a prefix needs permission", content: withSpec("mutations: {labels: [{key: example.com/rack, valueExpression: \"'a'\"}]}"), field: "spec.mutations.labels[0].key", message: "example.com", reasonOf: v1alpha1.ReasonKeyNotAllowed},
		"AllowedPrefix": {reason: "an allowed prefix is not a problem", content: withSpec("mutations: {labels: [{key: ray.io/rack, valueExpression: \"'a'\"}]}")},
		"Syntax":        {reason: "expressions are compiled", content: withSpec("validations: [{expression: 'nodes == 1'}]"), field: "spec.validations[0].expression", message: "nodes", reasonOf: v1alpha1.ReasonCompileError},
	} {
		t.Run(name, func(t *testing.T) {
			policies, err := checked(t, tc.content, policy.Options{KeyPrefixes: []string{"ray.io"}})
			require.NoError(t, err)
			require.Len(t, policies, 1)
			p := policies[0]
			if tc.message == "" {
				assert.Empty(t, p.Problems, tc.reason)
				assert.True(t, p.Ready())
				return
			}
			require.NotEmpty(t, p.Problems, tc.reason)
			assert.False(t, p.Ready())
			assert.Equal(t, tc.field, p.Problems[0].Field, tc.reason)
			assert.Contains(t, p.Problems[0].Message, tc.message, tc.reason)
			assert.Equal(t, tc.reasonOf, p.Problems[0].Reason, tc.reason)
			assert.NotContains(t, p.Problems[0].Message, "\n")
			if tc.field == "metadata.name" || strings.HasPrefix(name, "Timeout") {
				assert.Len(t, p.Problems, 1, "the mistake is reported once")
			}
		})
	}
}

// Mistakes of both kinds are reported together, once per field, with the advice to quote what YAML does not read as a text.
func TestCheck_Together(t *testing.T) {
	for content, want := range map[string][]string{
		"mode: Warn\nvalidations: [{expression: 'nodes == 1'}]": {"spec.mode", "spec.validations[0].expression"},
		"validations: [{expression: true}, {expression: a}]":    {"spec.validations[0].expression", "spec.validations[1].expression"},
		"validations:\n- expression: !has(pod.spec.nodeName)":   {"spec.validations[0].expression"},
	} {
		policies, err := checked(t, withSpec(content), policy.Options{})
		require.NoError(t, err)
		var fields []string
		for _, p := range policies[0].Problems {
			fields = append(fields, p.Field)
		}
		assert.Equal(t, want, fields, content)
		if !strings.Contains(content, "Warn") {
			assert.Contains(t, policies[0].Problems[0].Message, "; quote the expression")
		}
	}
	_, err := Parse("p.yaml", []byte(withSpec("validations:\n- expression: 'a' in pod.metadata.labels")))
	require.ErrorContains(t, err, "if this is an expression, quote it")
}

func TestCheck_Timeout(t *testing.T) {
	content := withSpec("waitFor: [{name: a, expression: 'true', timeout: 20m}, {name: b, expression: 'true', timeout: 10m}]")
	policies, err := checked(t, content, policy.Options{BindTimeout: 10 * time.Minute})
	require.NoError(t, err)
	require.Len(t, policies[0].Warnings, 1)
	assert.Equal(t, "spec.waitFor[0].timeout", policies[0].Warnings[0].FieldRef)
}

func TestValidator_Defaults(t *testing.T) {
	v := sharedValidator()
	object := map[string]any{"spec": map[string]any{"waitFor": []any{map[string]any{"name": "a", "expression": "true"}}}}
	v.validate(t.Context(), object)
	spec, _, err := unstructured.NestedMap(object, "spec")
	require.NoError(t, err)
	assert.Equal(t, map[string]any{
		"mode": "Enforce", "failurePolicy": "Fail",
		"waitFor": []any{map[string]any{"name": "a", "expression": "true", "timeout": "2m", "onTimeout": "Refuse"}},
	}, spec, "the rules of the API server see the defaults, which are those of the compiler")
}

func TestCheck_Others(t *testing.T) {
	policies, err := checked(t, withSpec(oneRule)+"---\n"+withSpec(oneRule)+`---
apiVersion: policy.prebind.dev/v1
kind: BindPolicy
metadata: {name: other}
---
apiVersion: policy.prebind.dev/v1alpha1
kind: Bindpolicy
metadata: {name: misspelled}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: ignored}
`, policy.Options{})
	require.ErrorContains(t, err, "p.yaml:14: policy.prebind.dev/v1, Kind=BindPolicy: must be policy.prebind.dev/v1alpha1, Kind=BindPolicy", "another version is not ignored")
	require.ErrorContains(t, err, "p.yaml:18: policy.prebind.dev/v1alpha1, Kind=Bindpolicy: must be", "another spelling is not ignored")
	require.Len(t, policies, 2)
	assert.True(t, policies[0].Ready())
	require.Len(t, policies[1].Problems, 1, "the API server has only one object with a name")
	assert.Equal(t, "metadata.name", policies[1].Problems[0].Field)
	assert.Contains(t, policies[1].Problems[0].Message, "p.yaml:3")
}

const customKind = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: rackstates.example.com}
spec:
  group: example.com
  names: {kind: RackState, plural: rackstates}
  scope: Cluster
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          status:
            type: object
            properties: {ready: {type: boolean}}
`

func TestCheck_Kinds(t *testing.T) {
	namespaced := strings.Replace(customKind, "scope: Cluster", "scope: Namespaced", 1)
	placed := strings.Replace(namespaced, "          status:", "          spec: {type: object, properties: {nodeName: {type: string}}}\n          status:", 1)
	for name, tc := range map[string]struct {
		reason, apiVersion, selection, crd, field, says string
	}{
		"NoCRD":     {reason: "fields of an unknown kind are not checked", selection: "labelSelector: {}", field: "spec.resources[0].kind", says: "kind not known: fields are not checked; pass its CustomResourceDefinition"},
		"Known":     {reason: "the kind is that of a given CustomResourceDefinition", selection: "labelSelector: {}", crd: customKind},
		"NotServed": {reason: "the API server does not serve the version", selection: "labelSelector: {}", crd: customKind + "  - {name: v2, served: false, storage: false, schema: {openAPIV3Schema: {type: object}}}\n", apiVersion: "example.com/v2", field: "spec.resources[0].kind", says: "kind not known"},
		"OnNode":    {reason: "onNode selects by spec.nodeName", selection: "onNode: true", crd: namespaced, field: "spec.resources[0].onNode", says: "RackState has no field spec.nodeName"},
		"Placed":    {reason: "objects have spec.nodeName", selection: "onNode: true", crd: placed},
	} {
		t.Run(name, func(t *testing.T) {
			policies, err := checked(t, withResource(cmp.Or(tc.apiVersion, "example.com/v1"), "RackState", tc.selection)+"---"+tc.crd, policy.Options{})
			require.NoError(t, err)
			require.Len(t, policies, 1)
			p := policies[0]
			require.Empty(t, p.Problems)
			if tc.says == "" {
				assert.Empty(t, p.Warnings, tc.reason)
				return
			}
			require.Len(t, p.Warnings, 1, tc.reason)
			assert.Equal(t, tc.field, p.Warnings[0].FieldRef)
			assert.Contains(t, p.Warnings[0].Warning, tc.says, tc.reason)
		})
	}
	_, err := checked(t, strings.Replace(customKind, "openAPIV3Schema", "schema", 1), policy.Options{})
	assert.ErrorContains(t, err, "p.yaml:13: CustomResourceDefinition rackstates.example.com: schema.openAPIV3Schema: required")
}
