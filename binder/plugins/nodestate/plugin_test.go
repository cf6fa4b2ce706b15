// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package nodestate

import (
	"errors"
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

func TestPreFlight(t *testing.T) {
	driver := annotation("expect", "driver=550")
	wait := annotation("wait", "30s")
	const advice = "; choose another node, or wait for this one with the annotation node-state.prebind.dev/wait"
	cases := map[string]struct {
		reason      string
		node        *corev1.Node
		annotations []gen.BindingOption
		waited      time.Duration
		want        framework.Kind
		message     string
		waits       string
	}{
		"Well": {reason: "the node passes all checks"},
		"Cordoned": {
			reason: "the node was cordoned after the decision", node: theNode(cordoned), want: framework.KindRefuse,
			message: "Node node-a: expected the node to be schedulable, but it is cordoned" + advice,
		},
		"Relabelled": {
			reason: "the scheduler expected another value", node: theNode(label("driver", "535")), annotations: []gen.BindingOption{driver}, want: framework.KindRefuse,
			message: `Node node-a: expected the label driver to be "550", but it is "535"` + advice,
		},
		"Waits": {
			reason: "the Binding requests a wait", node: theNode(label("driver", "535")), annotations: []gen.BindingOption{driver, wait},
			waits: `the label driver to be "550" (it is "535")`,
		},
		"WaitsForBase": {
			reason: "the node can be uncordoned", node: theNode(cordoned), annotations: []gen.BindingOption{wait},
			waits: "the node to be schedulable (it is cordoned)",
		},
		"WaitIsOver": {
			reason: "the limit has passed", node: theNode(cordoned), annotations: []gen.BindingOption{wait}, waited: 30 * time.Second, want: framework.KindRefuse,
			message: "Node node-a: still waiting for the node to be schedulable (it is cordoned) after 30s; choose another node",
		},
		"Leaving": {
			reason: "waiting cannot help", node: theNode(terminating), annotations: []gen.BindingOption{wait},
			want: framework.KindRefuse, message: "Node node-a: the node is being deleted; choose another node",
		},
		"Invalid": {reason: "annotations are validated first", node: theNode(cordoned), annotations: []gen.BindingOption{annotation("expcet", "a=b")}, want: framework.KindInvalid},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			node := tc.node
			if node == nil {
				node = theNode()
			}
			bc := contextFor(thePod(), node, tc.annotations...)
			bc.Now = bc.Since.Add(tc.waited)
			verdict, err := withAll.PreFlight(bc)
			if tc.want != "" {
				require.Error(t, err, tc.reason)
				assert.True(t, frameworktest.IsKind(err, tc.want), "%s: %v", tc.reason, err)
				if tc.message != "" {
					assert.EqualError(t, err, tc.message, tc.reason)
				}
				return
			}
			require.NoError(t, err, tc.reason)
			var want framework.Verdict
			if tc.waits != "" {
				want.Wait = framework.Wait{Object: framework.Object{Kind: "Node", Name: "node-a"}, For: tc.waits, Until: bc.Since.Add(30 * time.Second)}
			}
			assert.Equal(t, want, verdict, tc.reason)
		})
	}
}

func TestPreFlight_KeepsTheCause(t *testing.T) {
	pod := wanting(term(expression("a", gt, "x")))
	_, err := withAll.PreFlight(contextFor(pod, theNode()))
	refused := framework.AsError(Name, err)
	assert.Error(t, errors.Unwrap(refused), "the cause is the error of the affinity")
	assert.Equal(t, "correct the pod", refused.Advice)
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
