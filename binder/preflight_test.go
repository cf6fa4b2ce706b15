// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/gen"
)

// careless is a plugin that does not read from the API server itself: an object, the pod and the
// node must have the label ready.
type careless struct {
	plugin
	reads atomic.Int32
	// verify makes PreFlight return Verify instead of Skip.
	verify bool
}

var seenPod = framework.NewExtensionKey[*corev1.Pod]("careless")

func (c *careless) SetupBindContextExtension(ctx context.Context, reader framework.Reader, bc *framework.BindContext) error {
	c.reads.Add(1)
	pod, err := framework.Get(ctx, reader, &corev1.Pod{}, "default", "other")
	seenPod.Set(bc, pod)
	return err
}

func (c *careless) PreFlight(bc *framework.BindContext) (framework.Next, error) {
	other, err := seenPod.Get(bc)
	if err != nil {
		return framework.Run, err
	}
	bc.Intend("careless would do something")
	bc.Annotate("careless", "live", map[bool]string{true: "yes", false: "no"}[bc.Live])
	for _, o := range []map[string]string{bc.Pod.Labels, bc.Node.Labels, labelsOf(other)} {
		if o["ready"] == "" {
			return framework.Run, framework.Refuse(framework.Object{}, "it is not ready")
		}
	}
	if c.verify {
		return framework.Verify, nil
	}
	return framework.Skip, nil
}

func labelsOf(pod *corev1.Pod) map[string]string {
	if pod == nil {
		return nil
	}
	return pod.Labels
}

// TestPreFlight_RejectsByLiveReadsOnly: a plugin that ignores the rule is still correct.
func TestPreFlight_RejectsByLiveReadsOnly(t *testing.T) {
	ready := gen.Label("ready", "yes")
	pod := func(o ...gen.PodOption) *corev1.Pod { return gen.Pod("web", append(o, gen.UID("pod-1"))...) }
	other := func(o ...gen.PodOption) *corev1.Pod { return gen.Pod("other", append(o, gen.UID("pod-2"))...) }
	node := func(is bool) *corev1.Node {
		n := gen.Node("node-a", gen.UID("node-1"))
		if is {
			n.Labels["ready"] = "yes"
		}
		return n
	}
	well := holding(pod(ready), other(ready), node(true))
	replaced := gen.Node("node-a", gen.UID("node-2"))
	cases := map[string]struct {
		reason       string
		cached, live *store
		verify       bool
		want         framework.Kind
		by           string
		reads        int32
		setups       int32
	}{
		"Ready":           {reason: "the cache is enough to allow a bind", cached: well, live: holding(), setups: 1},
		"PodBehind":       {reason: "the live pod has the label", cached: holding(pod(), other(ready), node(true)), live: well, setups: 2, reads: 3},
		"NodeBehind":      {reason: "the live node has the label", cached: holding(pod(ready), other(ready), node(false)), live: well, setups: 2, reads: 3},
		"ExtensionBehind": {reason: "the live object has the label", cached: holding(pod(ready), other(), node(true)), live: well, setups: 2, reads: 3},
		"Missing":         {reason: "the live object exists", cached: holding(pod(ready), node(true)), live: well, setups: 2, reads: 3},
		"NotReady": {
			reason: "the API server agrees with the cache", cached: holding(pod(ready), other(), node(true)), live: holding(pod(ready), other(), node(true)),
			want: framework.KindRefuse, by: "careless", setups: 2, reads: 3,
		},
		"Verify":     {reason: "the plugin asked to verify", cached: well, live: well, verify: true, setups: 2, reads: 3},
		"VerifyFail": {reason: "a verification can reject the bind", cached: well, live: holding(pod(ready), node(true)), verify: true, want: framework.KindRefuse, by: "careless", setups: 2, reads: 3},
		"PodGone":    {reason: "the pod was deleted", cached: holding(pod(), node(true)), live: holding(node(true)), want: framework.KindStale, by: "binder", setups: 1, reads: 1},
		"NodeGone":   {reason: "the node was deleted", cached: holding(pod(), node(true)), live: holding(pod(ready)), want: framework.KindRefuse, by: "binder", setups: 1, reads: 2},
		"NodeReplaced": {
			reason: "all plugins must read the new node", cached: holding(pod(), node(true)), live: holding(pod(ready), replaced),
			want: framework.KindWait, by: "binder", setups: 1, reads: 2,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			well.reads.Store(0)
			p := &careless{plugin: plugin{name: "careless"}, verify: tc.verify}
			e := newTestEngine(t, func(o *Options) {
				o.Cached, o.Live, o.Settings.Plugins = tc.cached.server.Cache(), tc.live, []framework.PreBinder{p}
			})
			r := requestFor(gen.Binding(thePod, "node-a", gen.UID("pod-1")))
			r.DryRun = true
			d := e.Bind(t.Context(), r)
			assert.Equal(t, tc.setups, p.reads.Load(), "calls of Setup")
			assert.Equal(t, tc.reads, tc.live.reads.Load(), "live reads")
			if tc.want != "" {
				require.NotNil(t, d.Err, tc.reason)
				assert.Equal(t, tc.want, d.Err.Kind, tc.reason)
				assert.Equal(t, tc.by, d.Err.Plugin)
				return
			}
			require.Nil(t, d.Err, "%s: %v", tc.reason, d.Err)
			assert.Len(t, d.Warnings, 1, "the records of the first PreFlight are discarded")
			live := map[bool]string{true: "yes", false: "no"}[tc.setups > 1]
			assert.Equal(t, live, d.Annotations["careless.prebind.dev/live"], "Live matches the reader")
		})
	}
}

// TestRefresh_OncePerCall: two plugins that reject share one read of the pod and the node.
func TestRefresh_OncePerCall(t *testing.T) {
	live := holding(thePod, theNode)
	doubts := func(name string) framework.PreBinder {
		return &checker{plugin: plugin{name: name}, preFlight: func(bc *framework.BindContext) (framework.Next, error) {
			if !bc.Live {
				return framework.Run, errors.New("the cache failed")
			}
			return framework.Skip, nil
		}}
	}
	e := newTestEngine(t, func(o *Options) { o.Live, o.Settings.Plugins = live, []framework.PreBinder{doubts("a"), doubts("b")} })
	require.Nil(t, e.Bind(t.Context(), theRequest()).Err)
	assert.EqualValues(t, 2, live.reads.Load())
}

// accompanying returns a plugin that works only while another one works.
func accompanying(name string) *checker {
	return &checker{plugin: plugin{name: name}, preFlight: func(bc *framework.BindContext) (framework.Next, error) {
		bc.Intend("%s would do something", name)
		return framework.Accompany, nil
	}}
}

func TestPreFlight_Accompany(t *testing.T) {
	verifying := &checker{plugin: plugin{name: "verifying"}, preFlight: func(*framework.BindContext) (framework.Next, error) { return framework.Verify, nil }}
	for name, tc := range map[string]struct {
		reason string
		others []framework.PreBinder
		works  bool
		denied bool
	}{
		"Alone":     {reason: "there is no other plugin"},
		"Skips":     {reason: "the other plugin has nothing to do", others: []framework.PreBinder{nothingToDo("other")}},
		"Two":       {reason: "two plugins that accompany do not work for each other", others: []framework.PreBinder{accompanying("other")}},
		"Runs":      {reason: "the other plugin works", others: []framework.PreBinder{nothingToDo("idle"), acting("other")}, works: true},
		"Always":    {reason: "a plugin without PreFlight always works", others: []framework.PreBinder{&plugin{name: "other"}}, works: true},
		"Verifies":  {reason: "Verify means Run on live objects", others: []framework.PreBinder{verifying}, works: true},
		"NotAsked":  {reason: "the other plugin does not take part", others: []framework.PreBinder{&onDemand{*acting("other")}}},
		"Different": {reason: "the bind is rejected", others: []framework.PreBinder{failing("other", framework.Refuse(claim, "never"))}, denied: true},
	} {
		t.Run(name, func(t *testing.T) {
			companion := accompanying("companion")
			e := engineWith(t, append([]framework.PreBinder{companion}, tc.others...)...)
			d := e.Bind(t.Context(), theRequest())
			assert.Equal(t, tc.denied, d.Err != nil, "%v", d.Err)
			assert.Equal(t, tc.works, companion.preBinds.Load() == 1, tc.reason)
			assert.Equal(t, tc.works, len(e.InFlight()) == 1, "without work there is no attempt")
		})
	}
}

// taker is a plugin that reserves something in memory.
type taker struct {
	checker
	free  bool
	takes atomic.Int32
}

func (p *taker) Take(context.Context, *framework.BindContext) bool {
	p.takes.Add(1)
	return p.free
}

// TestTake: a bind whose plugins take needs no attempt.
func TestTake(t *testing.T) {
	returns := func(next framework.Next) func(*framework.BindContext) (framework.Next, error) {
		return func(*framework.BindContext) (framework.Next, error) { return next, nil }
	}
	cases := map[string]struct {
		reason  string
		free    bool
		other   framework.Next
		refuses bool
		dryRun  bool
		takes   int32
		ran     []string
	}{
		"Taken":    {reason: "the plugin has done its work", free: true, other: framework.Skip, takes: 1},
		"NotTaken": {reason: "the plugin must wait", other: framework.Skip, takes: 1, ran: []string{"a"}},
		"Works":    {reason: "the other plugin needs an attempt", free: true, other: framework.Run, ran: []string{"a", "b"}},
		"Follows":  {reason: "the other plugin accompanies the wait", other: framework.Accompany, takes: 1, ran: []string{"a", "b"}},
		"Alone":    {reason: "the other plugin has nothing to accompany", free: true, other: framework.Accompany, takes: 1},
		"NoTaker":  {reason: "the other plugin has no method Take", free: true, other: framework.Take, takes: 1, ran: []string{"a", "b"}},
		"DryRun":   {reason: "a dry run reserves nothing", free: true, other: framework.Skip, dryRun: true},
		"Refused":  {reason: "a bind that is rejected reserves nothing", free: true, refuses: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			var ran []string
			preBind := func(name string) func(context.Context, *framework.BindContext) error {
				return func(context.Context, *framework.BindContext) error {
					mu.Lock()
					defer mu.Unlock()
					ran = append(ran, name)
					return nil
				}
			}
			a := &taker{checker: checker{plugin: plugin{name: "a", preBind: preBind("a")}, preFlight: returns(framework.Take)}, free: tc.free}
			b := &checker{plugin: plugin{name: "b", preBind: preBind("b")}, preFlight: returns(tc.other)}
			if tc.refuses {
				b.preFlight = func(*framework.BindContext) (framework.Next, error) {
					return framework.Run, framework.Refuse(framework.Object{}, "no")
				}
			}
			e := newTestEngine(t, func(o *Options) { o.Live, o.Settings.Plugins = holding(thePod, theNode), []framework.PreBinder{a, b} })
			r := theRequest()
			r.DryRun = tc.dryRun
			d := e.Bind(t.Context(), r)
			assert.Equal(t, tc.refuses, d.Err != nil, "%v", d.Err)
			mu.Lock()
			defer mu.Unlock()
			assert.Equal(t, tc.ran, ran, tc.reason)
			assert.Equal(t, tc.takes, a.takes.Load(), tc.reason)
		})
	}
}
