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
	"github.com/prebind/prebind/test/gen"
)

func TestNew(t *testing.T) {
	for name, args := range map[string]*Arguments{"MaxWait": {}, "Checks": {Checks: []string{"unknown"}, MaxWait: maxWait}} {
		t.Run(name, func(t *testing.T) {
			_, err := New(framework.Handle{}, args)
			assert.Error(t, err, "the arguments are invalid")
		})
	}
	r := Registration()
	p, err := r.New(framework.Handle{}, r.Arguments())
	require.NoError(t, err, "the defaults are valid")
	assert.Equal(t, r.Name, p.Name())
	_, onAnnotation := p.(framework.OnRequest)
	assert.False(t, onAnnotation, "the plugin takes part in every bind")
}

func TestPreFlight(t *testing.T) {
	driver := annotation("expect", "driver=550")
	wait := annotation("wait", "30s")
	const advice = "; choose another node, or wait for this one with the annotation node-state.prebind.dev/wait"
	cases := map[string]struct {
		reason      string
		pod         *corev1.Pod
		node        *corev1.Node
		annotations []gen.BindingOption
		waited      time.Duration
		next        framework.Next
		want        framework.Kind
		message     string
		waits       string
	}{
		"Well":         {reason: "the node passes all checks", next: framework.Skip},
		"WellExpected": {reason: "the node is as expected", node: theNode(label("driver", "550")), annotations: []gen.BindingOption{driver}, next: framework.Skip},
		"WellWait":     {reason: "a node that passes all checks needs no wait", annotations: []gen.BindingOption{wait}, next: framework.Skip},
		"Cordoned": {
			reason: "the node was cordoned after the decision", node: theNode(cordoned), want: framework.KindRefuse,
			message: "Node node-a: expected the node to be schedulable, but it is cordoned" + advice,
		},
		"Relabelled": {
			reason: "the scheduler expected another value", node: theNode(label("driver", "535")), annotations: []gen.BindingOption{driver}, want: framework.KindRefuse,
			message: `Node node-a: expected the label driver to be "550", but it is "535"` + advice,
		},
		"Waits": {
			reason: "the Binding requests a wait", node: theNode(label("driver", "535")), annotations: []gen.BindingOption{driver, wait}, next: framework.Verify,
			waits: `the label driver to be "550" (it is "535")`,
		},
		"WaitsByPod": {
			reason: "the pod requests a wait", pod: thePod(annotation("expect-conditions", "GPUReady"), wait), next: framework.Verify,
			waits: "the condition GPUReady to be True (it is not set)",
		},
		"WaitsForBase": {
			reason: "the node can be uncordoned", node: theNode(cordoned), annotations: []gen.BindingOption{wait}, next: framework.Verify,
			waits: "the node to be schedulable (it is cordoned)",
		},
		"WaitsStill": {
			reason: "the limit has not passed", node: theNode(cordoned), annotations: []gen.BindingOption{wait}, waited: 29 * time.Second, next: framework.Verify,
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
		"Unreadable": {reason: "waiting cannot help", pod: wanting(term(expression("a", gt, "x"))), annotations: []gen.BindingOption{wait}, want: framework.KindRefuse},
		"Invalid":    {reason: "annotations are validated first", node: theNode(cordoned), annotations: []gen.BindingOption{annotation("expcet", "a=b")}, want: framework.KindInvalid},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			pod, node := tc.pod, tc.node
			if pod == nil {
				pod = thePod()
			}
			if node == nil {
				node = theNode()
			}
			bc := contextFor(pod, node, tc.annotations...)
			bc.Now = bc.Since.Add(tc.waited)
			next, err := pluginBetween(t, newWorld(nil), newWorld(nil)).PreFlight(bc)
			if tc.want != "" {
				require.Error(t, err, tc.reason)
				assert.True(t, framework.IsKind(err, tc.want), "%s: %v", tc.reason, err)
				if tc.message != "" {
					assert.EqualError(t, err, tc.message, tc.reason)
				}
				return
			}
			require.NoError(t, err, tc.reason)
			assert.Equal(t, tc.next, next, tc.reason)
			if tc.waits == "" {
				assert.Empty(t, bc.ExpectedWaits(), tc.reason)
				return
			}
			assert.Equal(t, []string{"node-state would wait up to 30s for " + tc.waits}, bc.Intents(), tc.reason)
			assert.Equal(t, []framework.Waiting{{
				Object: framework.Object{Kind: "Node", Name: "node-a"}, For: tc.waits, Until: bc.Since.Add(30 * time.Second),
			}}, bc.ExpectedWaits(), tc.reason)
		})
	}
}

func TestPreFlight_KeepsTheCause(t *testing.T) {
	pod := wanting(term(expression("a", gt, "x")))
	world := newWorld(theNode())
	_, err := pluginBetween(t, world, world).PreFlight(contextFor(pod, theNode()))
	refused := framework.AsError(Name, err)
	assert.Error(t, errors.Unwrap(refused), "the cause is the error of the affinity")
	assert.Equal(t, "correct the pod", refused.Advice)
}

func TestConfirm(t *testing.T) {
	driver := annotation("expect", "driver=550")
	wait := annotation("wait", "30s")
	well := theNode(label("driver", "550"))
	cases := map[string]struct {
		reason string
		// cached and live are the node after the PreBind of other plugins.
		cached, live *corev1.Node
		cachedErr    error
		liveErr      error
		annotations  []gen.BindingOption
		liveReads    int
		want         framework.Kind
		message      string
	}{
		"Well":        {reason: "the node has not changed", cached: well, live: theNode(cordoned), annotations: []gen.BindingOption{driver}},
		"CacheBehind": {reason: "the cache alone does not reject a bind", cached: theNode(cordoned), live: well, annotations: []gen.BindingOption{driver}, liveReads: 1},
		"CacheLacks":  {reason: "the cache alone does not reject a bind", live: well, liveReads: 1},
		"CacheFails":  {reason: "the API server still returns the node", cachedErr: errors.New("boom"), live: well, liveReads: 1},
		"Cordoned": {
			reason: "the node changed during provisioning", cached: theNode(cordoned), live: theNode(cordoned), liveReads: 1, want: framework.KindRefuse,
			message: "Node node-a: after the bind was prepared: expected the node to be schedulable, but it is cordoned; choose another node, or wait for this one with the annotation node-state.prebind.dev/wait",
		},
		"Relabelled": {
			reason: "expectations apply until the end", cached: theNode(label("driver", "535")), live: theNode(label("driver", "535")),
			annotations: []gen.BindingOption{driver}, liveReads: 1, want: framework.KindRefuse,
		},
		"WaitsAgain": {
			reason: "the volumes exist for this node", cached: theNode(cordoned), live: theNode(cordoned), annotations: []gen.BindingOption{wait},
			liveReads: 1, want: framework.KindWait,
			message: "Node node-a: after the bind was prepared: expected the node to be schedulable, but it is cordoned; retry the Binding",
		},
		"Gone": {
			reason: "waiting cannot help", annotations: []gen.BindingOption{wait}, liveReads: 1, want: framework.KindRefuse,
			message: "Node node-a: after the bind was prepared: the node does not exist; choose another node",
		},
		"Leaving": {
			reason: "the node is being deleted", cached: theNode(terminating), live: theNode(terminating), annotations: []gen.BindingOption{wait}, liveReads: 1, want: framework.KindRefuse,
		},
		"Replaced": {
			reason: "a recreated node is a different node", cached: theNode(uid("node-2")), live: theNode(uid("node-2")),
			annotations: []gen.BindingOption{wait}, liveReads: 1, want: framework.KindRefuse,
			message: "Node node-a: after the bind was prepared: the node was deleted and recreated; schedule the pod again",
		},
		"LiveFails": {reason: "an unreadable node cannot be checked", liveErr: errors.New("boom"), liveReads: 1, want: framework.KindInternal},
		"Invalid":   {reason: "the annotation is unknown", cached: well, annotations: []gen.BindingOption{annotation("x", "")}, want: framework.KindInvalid},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			cached, live := newWorld(tc.cached), newWorld(tc.live)
			cached.err, live.err = tc.cachedErr, tc.liveErr
			p, bc := pluginBetween(t, cached, live), contextFor(thePod(), well, tc.annotations...)
			err := p.Confirm(t.Context(), cached, bc)
			if err != nil {
				// The engine does the same.
				err = p.Confirm(t.Context(), live, bc)
			}
			assert.Equal(t, tc.liveReads, live.count(), "reads of the API server")
			if tc.want == "" {
				require.NoError(t, err, tc.reason)
				return
			}
			require.Error(t, err, tc.reason)
			assert.True(t, framework.IsKind(err, tc.want), "%s: %v", tc.reason, err)
			if tc.message != "" {
				assert.EqualError(t, err, tc.message, tc.reason)
			}
		})
	}
}

// Nearly every bind takes this path.
func TestPreFlight_IsCheapForAGoodNode(t *testing.T) {
	world := newWorld(theNode())
	p := pluginBetween(t, world, world)
	bc := contextFor(typicalPod(), typicalNode())
	allocs := testing.AllocsPerRun(100, func() {
		next, err := p.PreFlight(bc)
		if next != framework.Skip || err != nil {
			t.Errorf("got %v, %v", next, err)
		}
	})
	assert.LessOrEqual(t, allocs, 2.0, "PreFlight allocates only the map of parameters")
	assert.Zero(t, world.count(), "PreFlight reads nothing")
}

// typicalPod has the default tolerations and annotations of other tools.
func typicalPod() *corev1.Pod {
	return thePod(
		gen.Tolerates(notReady), gen.Tolerates(unreachable),
		gen.Annotation("checksum/config", "0123456789abcdef"), gen.Annotation("prometheus.io/scrape", "true"),
	)
}

func typicalNode() *corev1.Node {
	return theNode(
		reports("MemoryPressure", "False", ""), reports("DiskPressure", "False", ""), reports("PIDPressure", "False", ""),
		label("zone", "z1"), label("node.kubernetes.io/instance-type", "m7.large"), taint("soft", "", preferNot),
	)
}

func BenchmarkPreFlight(b *testing.B) {
	selecting := typicalPod()
	selecting.Spec.NodeSelector = map[string]string{"zone": "z1"}
	cases := map[string]struct {
		pod     *corev1.Pod
		options []gen.BindingOption
	}{
		"Typical":      {pod: typicalPod()},
		"NodeSelector": {pod: selecting},
		"Expectations": {pod: typicalPod(), options: []gen.BindingOption{annotation("expect", "zone=z1,!maintenance"), annotation("expect-conditions", "DiskPressure!=True")}},
	}
	for name, tc := range cases {
		b.Run(name, func(b *testing.B) {
			world := newWorld(nil)
			p := pluginBetween(b, world, world)
			bc := contextFor(tc.pod, typicalNode(), tc.options...)
			b.ReportAllocs()
			for b.Loop() {
				if next, err := p.PreFlight(bc); next != framework.Skip || err != nil {
					b.Fatal(next, err)
				}
			}
		})
	}
}
