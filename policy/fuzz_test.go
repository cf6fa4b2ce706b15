// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/prebind/prebind/policy"
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
	for _, text := range []string{
		example,
		"spec: {" + `validations: [{expression: "[1,2].all(x, x > 0)", message: m}]}`,
		"spec: {mode: Audit, failurePolicy: Ignore, mutations: {labels: [{key: a, valueExpression: dyn(1)}]}}",
		"spec: {matchConstraints: {podSelector: {matchExpressions: [{key: a, operator: In, values: [b]}]}}, waitFor: [{name: w, expression: 'false', timeout: 5s}]}",
		"spec: {resources: [{name: w, apiVersion: example.com/v1, kind: Widget, nameExpression: \"'a'\"}], validations: [{expression: resources.w.spec.sise == 1}]}",
	} {
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
				var problem *policy.Problem
				require.ErrorAs(t, err, &problem)
				require.NotEmpty(t, problem.Field)
				return
			}
			r, err := c.Evaluate(t.Context(), subject(), world())
			require.NoError(t, err)
			require.LessOrEqual(t, len(r.Message), policy.MaxMessage)
		})
	})
}
