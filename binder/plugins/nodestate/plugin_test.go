// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package nodestate

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/framework/frameworktest"
	"github.com/prebind/prebind/test/gen"
)

func TestArguments(t *testing.T) {
	invalid := (&Arguments{Checks: []string{"ready", "redy"}}).Validate(nil)
	assert.EqualError(t, invalid.ToAggregate(), `[maxWait: Invalid value: "0s": must be positive, checks[1]: Unsupported value: "redy": supported values: "ready", "schedulable", "taints", "affinity"]`)
}

// test/golden has the decisions of other Bindings at their first call.
func TestPreFlight_Waits(t *testing.T) {
	bc := contextFor(thePod(), theNode(cordoned), annotation("wait", "30s"))
	verdict, err := withAll.PreFlight(bc)
	require.NoError(t, err, "the node can be uncordoned")
	assert.Equal(t, framework.Verdict{Wait: framework.Wait{
		Object: framework.Object{Kind: "Node", Name: "node-a"}, For: "the node to be schedulable (it is cordoned)", Until: bc.Since.Add(30 * time.Second),
	}}, verdict)
	bc.Now = bc.Since.Add(30 * time.Second)
	_, err = withAll.PreFlight(bc)
	require.EqualError(t, err, "Node node-a: still waiting for the node to be schedulable (it is cordoned) after 30s; choose another node")
	assert.True(t, frameworktest.IsKind(err, framework.KindRefuse))
	_, err = withAll.PreFlight(contextFor(thePod(), theNode(terminating), annotation("wait", "30s")))
	require.EqualError(t, err, "Node node-a: the node is being deleted; choose another node", "waiting cannot help")
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
