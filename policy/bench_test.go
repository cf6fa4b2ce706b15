// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prebind/prebind/policy"
)

// benchmarked is a policy with three expressions, for pods with the label app.
func benchmarked(b *testing.B, name, app string) *policy.Compiled {
	b.Helper()
	p := parseSpec(b, "matchConstraints: {podSelector: {matchLabels: {app: "+app+"}}}\n"+declared+`
variables: [{name: clique, expression: "node.metadata.labels[?'nvidia.com/gpu.clique'].orValue('')"}]
validations: [{expression: "variables.clique != ''"}]
waitFor: [{name: driver, expression: "resources.csinode != null && resources.csinode.spec.drivers.exists(d, d.name == 'b')"}]
mutations: {annotations: [{key: clique, valueExpression: variables.clique}]}
`)
	p.Name = name
	c, err := policy.Compile(p, policy.Options{})
	require.NoError(b, err)
	return c
}

// BenchmarkEvaluate measures the policies of a bind.
func BenchmarkEvaluate(b *testing.B) {
	for name, n := range map[string]struct{ policies, matching int }{
		"5of5": {5, 5}, "0of200": {200, 0}, "5of200": {200, 5},
	} {
		b.Run(name, func(b *testing.B) {
			var all []*policy.Compiled
			for i := range n.policies {
				app := "db"
				if i < n.matching {
					app = "web"
				}
				all = append(all, benchmarked(b, fmt.Sprint("p", i), app))
			}
			s, o, ctx := subject(), world(), b.Context()
			s.Pod.Labels = map[string]string{"app": "web"}
			b.ReportAllocs()
			for b.Loop() {
				o.reads = o.reads[:0]
				for _, c := range all {
					if r, err := c.Evaluate(ctx, s, o); err != nil || r.Verdict.Rejects() {
						b.Fatal(r, err)
					}
				}
			}
		})
	}
}

// BenchmarkCompile measures the time and the memory that a policy needs.
func BenchmarkCompile(b *testing.B) {
	var kept []*policy.Compiled
	var before, after runtime.MemStats
	benchmarked(b, "p", "web")
	runtime.GC()
	runtime.ReadMemStats(&before)
	b.ReportAllocs()
	for b.Loop() {
		kept = append(kept, benchmarked(b, "p", "web"))
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/float64(len(kept)), "retained-B/policy")
	runtime.KeepAlive(kept)
}
