// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package nodestate

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/gen"
)

func TestNew(t *testing.T) {
	valid := Options{Cached: newWorld(nil), Live: newWorld(nil), Changes: framework.NewHub(), Domain: domain, MaxWait: maxWait}
	cases := map[string]func(o *Options){
		"Cached":  func(o *Options) { o.Cached = nil },
		"Live":    func(o *Options) { o.Live = nil },
		"Changes": func(o *Options) { o.Changes = nil },
		"Domain":  func(o *Options) { o.Domain = "" },
		"MaxWait": func(o *Options) { o.MaxWait = 0 },
	}
	for name, change := range cases {
		t.Run(name, func(t *testing.T) {
			o := valid
			change(&o)
			_, err := New(o)
			assert.ErrorContains(t, err, name, "it is required")
		})
	}
	p, err := New(valid)
	require.NoError(t, err, "without a check there are the annotations")
	assert.Equal(t, "node-state", p.Name())
	_, onAnnotation := any(p).(framework.OnAnnotation)
	assert.False(t, onAnnotation, "it takes part in every bind")
}

func TestPreFlight(t *testing.T) {
	driver := annotation("expect", "driver=550")
	wait := annotation("wait", "30s")
	overloaded := apierrors.NewServiceUnavailable("restarting")
	cases := map[string]struct {
		reason string
		pod    *corev1.Pod
		// node is that of the BindContext, live that of the API server: by default
		// the same, or none with gone.
		node, live  *corev1.Node
		gone        bool
		annotations []gen.BindingOption
		err         error
		next        framework.Next
		liveReads   int
		want        framework.Kind
		message     string
		intents     []string
	}{
		"Well":         {reason: "the good case costs no read at all", next: framework.Skip},
		"WellExpected": {reason: "as believed", node: theNode(label("driver", "550")), annotations: []gen.BindingOption{driver}, next: framework.Skip},
		"WellWait":     {reason: "there is nothing to wait for", annotations: []gen.BindingOption{wait}, next: framework.Skip},
		"CacheBehind":  {reason: "the cache alone refuses nothing", node: theNode(cordoned), live: theNode(), next: framework.Skip, liveReads: 1},
		"CacheBehindExpected": {
			reason: "the scheduler has seen the new label already", node: theNode(label("driver", "535")), live: theNode(label("driver", "550")),
			annotations: []gen.BindingOption{driver}, next: framework.Skip, liveReads: 1,
		},
		"Cordoned": {
			reason: "between decision and bind", node: theNode(cordoned), liveReads: 1, want: framework.KindRefuse,
			message: "Node node-a: expected the node to be schedulable, it is cordoned; choose another node, or let the bind wait with the annotation node-state.prebind.dev/wait",
		},
		"LiveIsTold": {
			reason: "what is refused is told as it is now", node: theNode(cordoned), live: theNode(label("driver", "535")),
			annotations: []gen.BindingOption{driver}, liveReads: 1, want: framework.KindRefuse,
			message: `Node node-a: expected the label driver to be "550", it is "535"; choose another node, or let the bind wait with the annotation node-state.prebind.dev/wait`,
		},
		"Waits": {
			reason: "it was asked to", node: theNode(label("driver", "535")), annotations: []gen.BindingOption{driver, wait}, liveReads: 1, next: framework.Run,
			intents: []string{`node-state would wait up to 30s for the label driver to be "550" (it is "535")`},
		},
		"WaitsByPod": {
			reason: "the pod asked for it", pod: thePod(annotation("expect-conditions", "GPUReady"), wait), liveReads: 1, next: framework.Run,
			intents: []string{"node-state would wait up to 30s for the condition GPUReady to be True (the node does not have it)"},
		},
		"WaitsForBase": {
			reason: "a node may be uncordoned", node: theNode(cordoned), annotations: []gen.BindingOption{wait}, liveReads: 1, next: framework.Run,
			intents: []string{"node-state would wait up to 30s for the node to be schedulable (it is cordoned)"},
		},
		"Gone": {
			reason: "there is nothing to wait for", node: theNode(cordoned), gone: true, annotations: []gen.BindingOption{wait}, liveReads: 1,
			want: framework.KindRefuse, message: "Node node-a: the node is gone; choose another node",
		},
		"Leaving": {
			reason: "it will not come back", node: theNode(terminating), annotations: []gen.BindingOption{wait}, liveReads: 1,
			want: framework.KindRefuse, message: "Node node-a: the node is being deleted; choose another node",
		},
		"Replaced": {
			reason: "the cache is behind, and the new node may be the one that is meant", node: theNode(cordoned), live: theNode(uid("node-2")), liveReads: 1,
			want:    framework.KindWait,
			message: "Node node-a: the node was deleted and created anew under its name, and Prebind has not heard of the new one yet; repeat the Binding",
		},
		"Unreadable": {
			reason: "no wait mends the pod", pod: wanting(term(expression("a", gt, "x"))), annotations: []gen.BindingOption{wait}, liveReads: 1, want: framework.KindRefuse,
		},
		"LiveFails":      {reason: "what cannot be read cannot be judged", node: theNode(cordoned), err: errors.New("boom"), liveReads: 1, want: framework.KindInternal, message: "Node node-a: reading it: boom"},
		"LiveOverloaded": {reason: "a matter of time", node: theNode(cordoned), err: overloaded, liveReads: 1, want: framework.KindWait},
		"Invalid":        {reason: "before anything is judged", node: theNode(cordoned), annotations: []gen.BindingOption{annotation("expcet", "a=b")}, want: framework.KindInvalid},
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
			live := newWorld(node)
			if tc.live != nil || tc.gone {
				live = newWorld(tc.live)
			}
			live.err = tc.err
			cached := newWorld(node)
			bc := contextFor(pod, node, tc.annotations...)
			next, err := pluginBetween(t, cached, live).PreFlight(t.Context(), bc)
			assert.Zero(t, cached.count(), "the engine has read the cache")
			assert.Equal(t, tc.liveReads, live.count(), "reads of the API server")
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
			assert.Equal(t, tc.intents, bc.Intents(), tc.reason)
		})
	}
}

func TestPreFlightKeepsTheCause(t *testing.T) {
	pod := wanting(term(expression("a", gt, "x")))
	world := newWorld(theNode())
	_, err := pluginBetween(t, world, world).PreFlight(t.Context(), contextFor(pod, theNode()))
	refused := framework.AsError(Name, err)
	assert.Error(t, errors.Unwrap(refused), "why the affinity cannot be read")
	assert.Equal(t, "correct the pod", refused.Advice)
}

func TestConfirm(t *testing.T) {
	driver := annotation("expect", "driver=550")
	wait := annotation("wait", "30s")
	well := theNode(label("driver", "550"))
	cases := map[string]struct {
		reason string
		// cached and live are the node as it is after the PreBind of others.
		cached, live *corev1.Node
		cachedErr    error
		liveErr      error
		annotations  []gen.BindingOption
		liveReads    int
		want         framework.Kind
		message      string
	}{
		"Well":        {reason: "as it was", cached: well, live: theNode(cordoned), annotations: []gen.BindingOption{driver}},
		"CacheBehind": {reason: "the cache alone refuses nothing", cached: theNode(cordoned), live: well, annotations: []gen.BindingOption{driver}, liveReads: 1},
		"CacheLacks":  {reason: "the cache alone refuses nothing", live: well, liveReads: 1},
		"CacheFails":  {reason: "the API server knows as well", cachedErr: errors.New("boom"), live: well, liveReads: 1},
		"Cordoned": {
			reason: "while volumes were made", cached: theNode(cordoned), live: theNode(cordoned), liveReads: 1, want: framework.KindRefuse,
			message: "Node node-a: after the bind was prepared: expected the node to be schedulable, it is cordoned; choose another node, or let the bind wait with the annotation node-state.prebind.dev/wait",
		},
		"Relabelled": {
			reason: "what was believed counts to the end", cached: theNode(label("driver", "535")), live: theNode(label("driver", "535")),
			annotations: []gen.BindingOption{driver}, liveReads: 1, want: framework.KindRefuse,
		},
		"WaitsAgain": {
			reason: "what was prepared is for this node", cached: theNode(cordoned), live: theNode(cordoned), annotations: []gen.BindingOption{wait},
			liveReads: 1, want: framework.KindWait,
			message: "Node node-a: after the bind was prepared: expected the node to be schedulable, it is cordoned; the repeated Binding waits for it again",
		},
		"Gone": {
			reason: "there is nothing to wait for", annotations: []gen.BindingOption{wait}, liveReads: 1, want: framework.KindRefuse,
			message: "Node node-a: after the bind was prepared: the node is gone; choose another node",
		},
		"Leaving": {
			reason: "it will be gone", cached: theNode(terminating), live: theNode(terminating), annotations: []gen.BindingOption{wait}, liveReads: 1, want: framework.KindRefuse,
		},
		"Replaced": {
			reason: "another node of the name is not the one that was prepared", cached: theNode(uid("node-2")), live: theNode(uid("node-2")),
			annotations: []gen.BindingOption{wait}, liveReads: 1, want: framework.KindRefuse,
			message: "Node node-a: after the bind was prepared: the node was deleted and created anew under its name; schedule the pod again",
		},
		"LiveFails": {reason: "what cannot be read cannot be judged", liveErr: errors.New("boom"), liveReads: 1, want: framework.KindInternal},
		"Invalid":   {reason: "as in PreFlight", cached: well, annotations: []gen.BindingOption{annotation("x", "")}, want: framework.KindInvalid},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			cached, live := newWorld(tc.cached), newWorld(tc.live)
			cached.err, live.err = tc.cachedErr, tc.liveErr
			err := pluginBetween(t, cached, live).Confirm(t.Context(), contextFor(thePod(), well, tc.annotations...))
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

func TestPreBindRollBack(t *testing.T) {
	world := newWorld(theNode())
	bc := contextFor(thePod(), theNode())
	require.NoError(t, pluginBetween(t, world, world).PreBindRollBack(t.Context(), bc))
	assert.Empty(t, bc.Undone(), "there is nothing to undo")
	assert.Zero(t, world.count())
}

// TestGoodCaseIsFree guards the cost of what happens with nearly every bind.
func TestGoodCaseIsFree(t *testing.T) {
	world := newWorld(theNode())
	p := pluginBetween(t, world, world)
	bc := contextFor(typicalPod(), typicalNode())
	allocs := testing.AllocsPerRun(100, func() {
		next, err := p.PreFlight(t.Context(), bc)
		if next != framework.Skip || err != nil {
			t.Errorf("got %v, %v", next, err)
		}
	})
	assert.LessOrEqual(t, allocs, 2.0, "only the map of parameters")
	assert.Zero(t, world.count(), "nothing is read")
}

// typicalPod tolerates what every pod does, and has annotations of others.
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
				if next, err := p.PreFlight(b.Context(), bc); next != framework.Skip || err != nil {
					b.Fatal(next, err)
				}
			}
		})
	}
}
