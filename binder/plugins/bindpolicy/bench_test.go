// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package bindpolicy

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/policy"
	"github.com/prebind/prebind/test/fakeapi"
	"github.com/prebind/prebind/test/gen"
)

// BenchmarkPreFlight measures the cost of the policies for one bind.
func BenchmarkPreFlight(b *testing.B) {
	const annotate = `
variables: [{name: zone, expression: "node.metadata.labels[?'topology.kubernetes.io/zone'].orValue('')"}]
mutations: {annotations: [{key: zone, valueExpression: variables.zone}]}
`
	cases := map[string]struct {
		policies int
		spec     string
	}{
		"none":                    {},
		"100 not matched":         {policies: 100, spec: allowAll + "\nmatchConstraints: {schedulerNames: [other]}"},
		"100 of other namespaces": {policies: 100, spec: allowAll + "\nmatchConstraints: {namespaceSelector: {matchLabels: {team: x}}}"},
		"10 annotate":             {policies: 10, spec: annotate},
		"10 read a CSINode":       {policies: 10, spec: onCSINode},
	}
	for name, tc := range cases {
		b.Run(name, func(b *testing.B) {
			server := fakeapi.New([]client.Object{withDriver("csi")}...)
			p := newPlugin(framework.Handle{Cached: server.Cache(), Clock: clock.RealClock{}}, &Arguments{}, newMetrics(), nil)
			var all []*entry
			for i := range tc.policies {
				c, err := policy.Compile(policyOf(b, fmt.Sprintf("p-%03d", i), tc.spec), policy.Options{})
				require.NoError(b, err)
				all = append(all, entryOf(c, nil))
			}
			p.set.Store(&all)
			now := clock.RealClock{}.Now()
			pod, node := gen.Pod("web"), gen.Node("node-a", gen.Zone("z1"))
			bc := &framework.BindContext{Pod: pod, Node: node, Binding: gen.Binding(pod, node.Name), Now: now, Since: now}
			b.ReportAllocs()
			for b.Loop() {
				if err := p.SetupBindContextExtension(b.Context(), server.Cache(), bc); err != nil {
					b.Fatal(err)
				}
				if verdict, err := p.PreFlight(bc); err != nil || verdict.Wait != (framework.Wait{}) {
					b.Fatalf("%v %v", verdict, err)
				}
			}
		})
	}
}
