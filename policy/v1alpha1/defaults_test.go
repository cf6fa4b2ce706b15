// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"encoding/json"
	"maps"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/prebind/prebind/policy/v1alpha1"
)

const crd = "../../config/webhook/plugins/policy/crd.yaml"

// property is a part of the schema.
type property struct {
	Default    any                 `json:"default"`
	Properties map[string]property `json:"properties"`
	Items      *property           `json:"items"`
}

// defaulted returns the value with the defaults of the schema.
func (p property) defaulted(value any) any {
	switch v := value.(type) {
	case map[string]any:
		all := maps.Clone(v)
		for name, below := range p.Properties {
			if all[name] == nil && below.Default != nil {
				all[name] = below.Default
			}
			if all[name] != nil {
				all[name] = below.defaulted(all[name])
			}
		}
		return all
	case []any:
		all := make([]any, 0, len(v))
		for _, item := range v {
			all = append(all, p.Items.defaulted(item))
		}
		return all
	default:
		return value
	}
}

// schema returns the schema of the CustomResourceDefinition.
func schema(t *testing.T) property {
	t.Helper()
	content, err := os.ReadFile(crd)
	require.NoError(t, err)
	var definition struct {
		Spec struct {
			Versions []struct {
				Schema struct {
					OpenAPIV3Schema property `json:"openAPIV3Schema"`
				} `json:"schema"`
			} `json:"versions"`
		} `json:"spec"`
	}
	require.NoError(t, yaml.Unmarshal(content, &definition))
	require.Len(t, definition.Spec.Versions, 1)
	return definition.Spec.Versions[0].Schema.OpenAPIV3Schema
}

// decoded returns the policy of a YAML document.
func decoded(t *testing.T, content []byte) *v1alpha1.BindPolicy {
	t.Helper()
	p := &v1alpha1.BindPolicy{}
	require.NoError(t, yaml.UnmarshalStrict(content, p))
	return p
}

func TestSetDefaults_EqualsCRD(t *testing.T) {
	cases := map[string]struct{ reason, content string }{
		"minimal": {reason: "all fields with a default are absent", content: `
spec:
  matchConstraints: {namespaceSelector: {matchExpressions: [{key: team, operator: Exists}]}, schedulerNames: [default-scheduler]}
  matchConditions: [{name: a, expression: 'true'}]
  resources: [{name: agents, apiVersion: v1, kind: Pod, onNode: true}]
  variables: [{name: a, expression: 'true'}]
  validations: [{expression: 'true'}]
  waitFor: [{name: a, expression: 'true'}, {name: b, expression: 'true', timeout: 5s}]
  mutations: {annotations: [{key: a, valueExpression: 'null'}], labels: [{key: a, valueExpression: 'null'}]}
status:
  conditions: [{type: Ready, status: 'True', reason: InForce, message: '', lastTransitionTime: '2026-01-01T00:00:00Z'}]
  typeChecking: {expressionWarnings: [{fieldRef: a, warning: b}]}
`},
		"complete": {reason: "given values stay", content: `
spec:
  waitFor: [{name: a, expression: 'true', timeout: 90s, onTimeout: Allow}]
  failurePolicy: Ignore
  mode: Audit
`},
		"without waits": {reason: "a default does not create a wait", content: "spec: {validations: [{expression: 'true'}]}"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var raw map[string]any
			require.NoError(t, yaml.Unmarshal([]byte(tc.content), &raw))
			content, err := json.Marshal(schema(t).defaulted(raw))
			require.NoError(t, err)
			got := decoded(t, []byte(tc.content))
			v1alpha1.SetDefaults(got)
			assert.Equal(t, decoded(t, content), got, tc.reason)
		})
	}
}

func TestSetDefaults_Minimal(t *testing.T) {
	p := decoded(t, []byte("spec: {waitFor: [{name: a, expression: 'true'}]}"))
	v1alpha1.SetDefaults(p)
	assert.Equal(t, v1alpha1.FailurePolicyFail, p.Spec.FailurePolicy)
	assert.Equal(t, v1alpha1.ModeEnforce, p.Spec.Mode)
	assert.Equal(t, 2*time.Minute, p.Spec.WaitFor[0].Timeout.Duration)
	assert.Equal(t, v1alpha1.OnTimeoutRefuse, p.Spec.WaitFor[0].OnTimeout)
}

// A Go client that leaves optional fields empty does not send them, so that the API server sets the defaults.
func TestBindPolicy_EmptyFieldsAreAbsent(t *testing.T) {
	content, err := json.Marshal(v1alpha1.BindPolicy{Spec: v1alpha1.BindPolicySpec{
		Resources:   []v1alpha1.Resource{{Name: "agents", APIVersion: "v1", Kind: "Pod", OnNode: true}},
		Validations: []v1alpha1.Validation{{Expression: "true"}},
		WaitFor:     []v1alpha1.Wait{{Name: "a", Expression: "true"}},
	}})
	require.NoError(t, err)
	assert.JSONEq(t, `{"metadata": {}, "spec": {
		"resources": [{"name": "agents", "apiVersion": "v1", "kind": "Pod", "onNode": true}],
		"validations": [{"expression": "true"}],
		"waitFor": [{"name": "a", "expression": "true"}]}}`, string(content))
}
