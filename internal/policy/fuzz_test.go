// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/prebind/prebind/internal/policy"
	"github.com/prebind/prebind/policy/v1alpha1"
)

// slow is longer than any input of a fuzz test may need. It is generous, because the machine may be busy.
const slow = 20 * time.Second

// timed fails if the function needs too long.
func timed(t *testing.T, f func()) {
	t.Helper()
	start := time.Now()
	f()
	require.Less(t, time.Since(start), slow)
}

// A policy compiles or has problems. Then its evaluation ends.
func FuzzCompile(f *testing.F) {
	shipped, err := filepath.Glob("../../config/policies/*/policy.yaml")
	require.NoError(f, err)
	require.NotEmpty(f, shipped)
	seeds := []string{
		"spec: {" + `validations: [{expression: "[1,2].all(x, x > 0)", message: m}]}`,
		"spec: {mode: Audit, failurePolicy: Ignore, mutations: {labels: [{key: a, valueExpression: dyn(1)}]}}",
		"spec: {matchConstraints: {podSelector: {matchExpressions: [{key: a, operator: In, values: [b]}]}}, waitFor: [{name: w, expression: 'false', timeout: 5s}]}",
		"spec: {resources: [{name: w, apiVersion: example.com/v1, kind: Widget, nameExpression: \"'a'\"}], validations: [{expression: resources.w.spec.sise == 1}]}",
	}
	for _, file := range shipped {
		content, err := os.ReadFile(file)
		require.NoError(f, err)
		seeds = append(seeds, string(content))
	}
	for _, text := range seeds {
		seed, err := yaml.YAMLToJSON([]byte(text))
		require.NoError(f, err)
		f.Add(seed)
	}
	o := policy.Options{Schemas: schemas{"Widget": widget()}}
	f.Fuzz(func(t *testing.T, text []byte) {
		p := &v1alpha1.BindPolicy{}
		if json.Unmarshal(text, p) != nil {
			return
		}
		if p.Name == "" {
			p.Name = "p"
		}
		timed(t, func() {
			c, err := policy.Compile(p, o)
			if err != nil {
				for _, problem := range policy.Problems(err) {
					require.NotEmpty(t, problem.Field)
				}
				return
			}
			r, err := c.Evaluate(t.Context(), subject(), world())
			require.NoError(t, err)
			require.LessOrEqual(t, len(r.Message), policy.MaxMessage)
		})
	})
}

// The evaluation of any expression ends.
func FuzzEvaluate(f *testing.F) {
	for _, expression := range []string{
		"resources.csinode.spec.drivers.filter(d, has(d.allocatable) && d.allocatable.count > 0).map(d, d.nodeID).join(',')",
		"resources.csinode.metadata.annotations.transformList(k, v, k + v).join(',')",
		"string(resources.csinode == resources.other)",
		"resources.agents.map(p, p.spec.containers.map(c, c.?resources.?requests[?'cpu'].orValue('0')).join('+')).join(',')",
		"resources.agents.sortBy(p, p.metadata.name).map(p, p.status.?phase.orValue('')).join(',')",
		"resources.w.spec.map.transformList(k, v, k + string(v)).join(',')",
		"string(dyn(resources)['w'].spec.size) + string(dyn(resources).csinode.spec.drivers.size())",
		"claims.data.spec.accessModes.join(',') + string(quantity(claims.data.spec.resources.requests['storage']).asApproximateFloat())",
		"variables.running.map(p, p.status.podIP).join(',')",
	} {
		f.Add(expression, []byte(`{"spec":{"size":3,"tags":["x"],"map":{"a":"1"}},"status":{"ready":true}}`))
	}
	f.Add("string(resources.agents.all(a, resources.agents.all(b, a == b)))", []byte(`{}`))
	f.Fuzz(func(t *testing.T, expression string, text []byte) {
		p := parseSpec(t, declared+"variables: [{name: spec, expression: resources.csinode.spec}, {name: running, expression: \"resources.agents.filter(p, p.status.phase == 'Running')\"}]\nmutations: {annotations: [{key: a, valueExpression: x}]}")
		p.Spec.Mutations.Annotations[0].ValueExpression = expression
		timed(t, func() {
			c, err := policy.Compile(p, policy.Options{})
			if err != nil {
				return
			}
			o := world()
			w := &unstructured.Unstructured{}
			if json.Unmarshal(text, &w.Object) == nil && w.Object != nil {
				w.Object["metadata"] = map[string]any{"name": "node-1"}
				o.resources["w"] = []client.Object{w}
			}
			_, err = c.Evaluate(t.Context(), subject(), o)
			require.NoError(t, err)
		})
	})
}
