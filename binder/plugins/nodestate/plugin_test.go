// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package nodestate

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/framework/frameworktest"
	"github.com/prebind/prebind/test/gen"
)

func TestArguments(t *testing.T) {
	invalid := (&Arguments{Checks: []string{"ready", "redy"}}).Validate(nil)
	assert.EqualError(t, invalid.ToAggregate(), `[maxWait: Invalid value: "0s": must be positive, checks[1]: Unsupported value: "redy": supported values: "ready", "schedulable", "taints", "affinity"]`)
}

// test/golden has the decisions at the first call.
func TestPreFlight(t *testing.T) {
	cases := map[string]struct {
		reason  string
		node    *corev1.Node
		waited  time.Duration
		message string
		waits   string
	}{
		"WaitsForBase": {reason: "the node can be uncordoned", node: theNode(cordoned), waits: "the node to be schedulable (it is cordoned)"},
		"WaitIsOver": {
			reason: "the limit has passed", node: theNode(cordoned), waited: 30 * time.Second,
			message: "Node node-a: still waiting for the node to be schedulable (it is cordoned) after 30s; choose another node",
		},
		"Leaving": {reason: "waiting cannot help", node: theNode(terminating), message: "Node node-a: the node is being deleted; choose another node"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			bc := contextFor(thePod(), tc.node, annotation("wait", "30s"))
			bc.Now = bc.Since.Add(tc.waited)
			verdict, err := withAll.PreFlight(bc)
			if tc.message != "" {
				require.EqualError(t, err, tc.message, tc.reason)
				assert.True(t, frameworktest.IsKind(err, framework.KindRefuse), tc.reason)
				return
			}
			require.NoError(t, err, tc.reason)
			want := framework.Verdict{Wait: framework.Wait{Object: framework.Object{Kind: "Node", Name: "node-a"}, For: tc.waits, Until: bc.Since.Add(30 * time.Second)}}
			assert.Equal(t, want, verdict, tc.reason)
		})
	}
}

// Nearly every bind takes this path: the pod has the default tolerations and annotations of other tools.
func TestPreFlight_IsCheapForAGoodNode(t *testing.T) {
	pod := thePod(
		gen.Tolerates(notReady), gen.Tolerates(unreachable),
		gen.Annotation("checksum/config", "0123456789abcdef"), gen.Annotation("prometheus.io/scrape", "true"),
	)
	bc := contextFor(pod, theNode(
		reports("MemoryPressure", "False", ""), reports("DiskPressure", "False", ""), reports("PIDPressure", "False", ""),
		label("zone", "z1"), label("node.kubernetes.io/instance-type", "m7.large"), taint("soft", "", preferNot),
	))
	allocs := testing.AllocsPerRun(100, func() {
		if verdict, err := withAll.PreFlight(bc); verdict.Wait.For != "" || err != nil {
			t.Errorf("got %v, %v", verdict, err)
		}
	})
	assert.LessOrEqual(t, allocs, 2.0, "PreFlight allocates only the map of parameters")
}
