// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/mutators"
	"github.com/prebind/prebind/test/gen"
)

func TestOptions(t *testing.T) {
	valid := Options{
		Cached: holding(), Live: holding(), Clock: clock.RealClock{},
		Changes: framework.NewHub(), Events: &recorder{}, Domain: "prebind.dev", Replica: "here",
		Settings: Settings{
			Mode: ModeEnforce, Mutators: chain(t),
			Hold: time.Second, MaxHolds: 1, PreBindTimeout: time.Second, MaxPreBindTimeout: time.Second,
		},
	}
	cases := map[string]struct {
		reason string
		change func(o *Options)
		ok     bool
	}{
		"Valid":           {reason: "plugins are not required", change: func(*Options) {}, ok: true},
		"NoCache":         {reason: "required", change: func(o *Options) { o.Cached = nil }},
		"NoLive":          {reason: "required", change: func(o *Options) { o.Live = nil }},
		"NoMutators":      {reason: "an empty chain says none, nil is a mistake", change: func(o *Options) { o.Settings.Mutators = nil }},
		"NoClock":         {reason: "required", change: func(o *Options) { o.Clock = nil }},
		"NoChanges":       {reason: "required", change: func(o *Options) { o.Changes = nil }},
		"NoEvents":        {reason: "required", change: func(o *Options) { o.Events = nil }},
		"NoDomain":        {reason: "required", change: func(o *Options) { o.Domain = "" }},
		"NoReplica":       {reason: "attempts name it", change: func(o *Options) { o.Replica = "" }},
		"ReplicaWithDash": {reason: "attempts could not be told apart", change: func(o *Options) { o.Replica = "a-b" }},
		"TwoPlugins":      {reason: "other names are fine", change: func(o *Options) { o.Settings.Plugins = []framework.PreBinder{&plugin{name: "a"}, &plugin{name: "b"}} }, ok: true},
		"SamePluginTwice": {reason: "a duplicate is an error", change: func(o *Options) { o.Settings.Plugins = []framework.PreBinder{&plugin{name: "a"}, &plugin{name: "a"}} }},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			o := valid
			tc.change(&o)
			_, err := New(o)
			assert.Equal(t, tc.ok, err == nil, tc.reason)
		})
	}
}

// TestBindPassesThrough: the API server gives its own answer, and nothing had a
// side effect.
func TestBindPassesThrough(t *testing.T) {
	bound := gen.Pod("web", gen.UID("pod-1"), gen.BoundTo("node-b"))
	cases := map[string]struct {
		reason       string
		binding      *corev1.Binding
		cached, live *store
		liveReads    int32
	}{
		"EmptyTarget": {
			reason:  "there is no node to bind to, and nothing is read",
			binding: gen.Binding(thePod, ""), cached: holding(thePod, theNode), live: holding(),
		},
		"OtherTarget": {
			reason:  "only nodes are Prebind's business",
			binding: gen.Binding(thePod, "node-a", gen.TargetKind("Machine")), cached: holding(thePod, theNode), live: holding(),
		},
		"PodMissing": {
			reason:  "the API server says so by itself",
			binding: gen.Binding(thePod, "node-a"), cached: holding(theNode), live: holding(), liveReads: 1,
		},
		"PodMissingButCached": {
			reason:  "the API server has the last word when the cache would refuse",
			binding: gen.Binding(thePod, "node-a", gen.UID("pod-2")), cached: holding(thePod, theNode), live: holding(), liveReads: 1,
		},
		"PodBound": {
			reason:  "the cache of pending pods lacks it, the API server refuses to bind it again",
			binding: gen.Binding(thePod, "node-a"), cached: holding(theNode), live: holding(bound), liveReads: 1,
		},
		"PodBoundInCache": {
			reason:  "whatever the cache is restricted to, a bound pod is looked at again",
			binding: gen.Binding(thePod, "node-a"), cached: holding(bound, theNode), live: holding(bound), liveReads: 1,
		},
		"BoundAndTerminating": {
			reason:  "bound comes first: it is the API server's answer",
			binding: gen.Binding(thePod, "node-a"), cached: holding(theNode), liveReads: 1,
			live: holding(gen.Pod("web", gen.UID("pod-1"), gen.BoundTo("node-b"), gen.Terminating())),
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			p := &checker{plugin: plugin{name: "p"}}
			e := newTestEngine(t, func(o *Options) {
				o.Cached, o.Live, o.Settings.Plugins = tc.cached, tc.live, []framework.PreBinder{p}
			})
			d := e.Bind(t.Context(), requestFor(tc.binding))
			assert.Equal(t, Decision{PassThrough: true}, d, tc.reason)
			assert.Equal(t, tc.liveReads, tc.live.reads.Load(), "live reads")
			assert.Zero(t, p.preFlights.Load()+p.preBinds.Load(), "no plugin is asked")
		})
	}
}

func TestBindReadsPod(t *testing.T) {
	cases := map[string]struct {
		reason       string
		cached, live *store
		want         framework.Kind
		liveReads    int32
	}{
		"Cached": {
			reason: "what the cache has costs no call",
			cached: holding(thePod, theNode), live: holding(thePod),
		},
		"Missed": {
			reason: "a miss costs exactly one live read",
			cached: holding(theNode), live: holding(thePod), liveReads: 1,
		},
		"CachedUIDIsOld": {
			reason: "the cache has not seen the new pod yet",
			cached: holding(gen.Pod("web", gen.UID("pod-0")), theNode), live: holding(thePod), liveReads: 1,
		},
		"UIDIsOld": {
			reason: "the Binding is for a pod that is gone",
			cached: holding(gen.Pod("web", gen.UID("pod-2")), theNode), live: holding(gen.Pod("web", gen.UID("pod-2"))),
			want: framework.KindStale, liveReads: 1,
		},
		"CachedGateIsOld": {
			reason: "the gate was removed, which the cache has not seen yet",
			cached: holding(gen.Pod("web", gen.UID("pod-1"), gen.Gate("g")), theNode), live: holding(thePod), liveReads: 1,
		},
		"Terminating": {
			reason: "a pod that is being deleted stays so",
			cached: holding(gen.Pod("web", gen.UID("pod-1"), gen.Terminating()), theNode),
			live:   holding(gen.Pod("web", gen.UID("pod-1"), gen.Terminating())),
			want:   framework.KindStale, liveReads: 1,
		},
		"CacheFails": {
			reason: "the API server is asked when the cache cannot answer",
			cached: brokenStore(errors.New("no informer")), live: holding(thePod, theNode), liveReads: 2,
		},
		"LiveFails": {
			reason: "without the pod nothing can be decided: it is Prebind's failure",
			cached: holding(theNode), live: brokenStore(errors.New("boom")), want: framework.KindInternal, liveReads: 1,
		},
		"LiveOverloaded": {
			reason: "an overloaded API server is no failure but a matter of time",
			cached: holding(theNode), live: brokenStore(apierrors.NewTooManyRequestsError("slow down")),
			want: framework.KindWait, liveReads: 1,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			checks := 0
			p := &checker{plugin: plugin{name: "p"}, preFlight: func(*framework.BindContext) (framework.Next, error) {
				checks++
				return framework.Skip, nil
			}}
			e := newTestEngine(t, func(o *Options) {
				o.Cached, o.Live, o.Settings.Plugins = tc.cached, tc.live, []framework.PreBinder{p}
			})
			d := e.Bind(t.Context(), theRequest())
			assert.Equal(t, tc.want, kindOf(d.Err), "%s: %v", tc.reason, d.Err)
			assert.Equal(t, tc.liveReads, tc.live.reads.Load(), "live reads")
			assert.Equal(t, tc.want == "", checks == 1, "PreFlight runs when the pod is fine")
			if tc.want == "" {
				return
			}
			assert.Equal(t, "binder", d.Err.Plugin)
			assert.Equal(t, framework.Object{Kind: "Pod", Namespace: "default", Name: "web"}, d.Err.Object)
			assert.NotEmpty(t, d.Err.Advice)
			assert.Equal(t, tc.want == framework.KindWait, d.RetryAfter >= time.Second, "RetryAfter belongs to waiting")
		})
	}
}

func TestBindReadsNode(t *testing.T) {
	other := errors.New("boom")
	cases := map[string]struct {
		reason string
		cached *store
		live   *store
		want   framework.Kind
		reads  int32
	}{
		"Cached":  {reason: "no call", cached: holding(thePod, theNode), live: holding(theNode)},
		"Missed":  {reason: "a new node may not be in the cache yet", cached: holding(thePod), live: holding(theNode), reads: 1},
		"Unknown": {reason: "there is no such node", cached: holding(thePod), live: holding(), want: framework.KindRefuse, reads: 1},
		"Fails":   {reason: "Prebind's failure", cached: holding(thePod), live: brokenStore(other), want: framework.KindInternal, reads: 1},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			e := newTestEngine(t, func(o *Options) {
				o.Cached, o.Live, o.Settings.Plugins = tc.cached, tc.live, []framework.PreBinder{&plugin{name: "p"}}
			})
			d := e.Bind(t.Context(), theRequest())
			assert.Equal(t, tc.want, kindOf(d.Err), "%s: %v", tc.reason, d.Err)
			assert.Equal(t, tc.reads, tc.live.reads.Load(), "live reads")
			if d.Err != nil {
				assert.Equal(t, "binder", d.Err.Plugin)
				assert.Equal(t, framework.Object{Kind: "Node", Name: "node-a"}, d.Err.Object)
				assert.NotEmpty(t, d.Err.Advice)
			}
		})
	}
}

func TestBindMutates(t *testing.T) {
	writes := mutatorFunc(func(in mutators.Input) (mutators.Output, error) {
		return mutators.Output{Annotations: map[string]string{"node": in.Node.Name}}, nil
	})
	errNoIdea := errors.New("no idea")
	breaks := mutatorFunc(func(mutators.Input) (mutators.Output, error) { return mutators.Output{}, errNoIdea })
	labels := mutatorFunc(func(mutators.Input) (mutators.Output, error) {
		return mutators.Output{Labels: map[string]string{"rack": "r1"}}, nil
	})
	floods := mutatorFunc(func(mutators.Input) (mutators.Output, error) {
		return mutators.Output{Annotations: map[string]string{"big": strings.Repeat("x", 256<<10)}}, nil
	})
	cases := map[string]struct {
		reason   string
		mutator  mutators.Mutator
		required bool
		binding  []gen.BindingOption
		want     Decision
		warns    string
		kind     framework.Kind
	}{
		"Pinned": {
			reason:  "a Binding without UID is pinned to the pod that was checked",
			mutator: writes,
			want:    Decision{Annotations: map[string]string{"test.prebind.dev/node": "node-a"}, UID: "pod-1"},
		},
		"HasUID": {
			reason:  "a UID of its own is left as it is",
			mutator: writes,
			binding: []gen.BindingOption{gen.UID("pod-1")},
			want:    Decision{Annotations: map[string]string{"test.prebind.dev/node": "node-a"}},
		},
		"Replaced": {
			reason:  "a replaced value is told to who wrote it",
			mutator: writes,
			binding: []gen.BindingOption{gen.UID("pod-1"), gen.Annotation("test.prebind.dev/node", "mine")},
			want: Decision{
				Annotations: map[string]string{"test.prebind.dev/node": "node-a"},
				Conflicts:   []mutators.Conflict{{Mutator: "test", Field: "annotation", Key: "test.prebind.dev/node", Source: "Binding"}},
			},
			warns: "test.prebind.dev/node",
		},
		"Fails": {
			reason:  "a failing mutator does not stop the bind",
			mutator: breaks,
			binding: []gen.BindingOption{gen.UID("pod-1")},
			want:    Decision{Annotations: map[string]string{}, Failures: []mutators.Failure{{Mutator: "test", Err: errNoIdea}}},
			warns:   "no idea",
		},
		"Labels": {
			reason:  "labels reach the pod as annotations do",
			mutator: labels,
			binding: []gen.BindingOption{gen.UID("pod-1")},
			want:    Decision{Annotations: map[string]string{}, Labels: map[string]string{"test.prebind.dev/rack": "r1"}},
		},
		"LabelKept": {
			reason:  "a label of the user's own stays, and the user is told",
			mutator: labels,
			binding: []gen.BindingOption{gen.UID("pod-1"), gen.Label("test.prebind.dev/rack", "mine")},
			want: Decision{
				Annotations: map[string]string{},
				Conflicts:   []mutators.Conflict{{Mutator: "test", Field: "label", Key: "test.prebind.dev/rack", Source: "Binding", Kept: true}},
			},
			warns: "test.prebind.dev/rack",
		},
		"RequiredFails": {
			reason:   "no pod is bound without what the operator requires",
			mutator:  breaks,
			required: true,
			kind:     framework.KindRefuse,
		},
		"TooMuch": {
			reason:  "what the pod could not be updated with is not admitted",
			mutator: floods,
			kind:    framework.KindInvalid,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			o := mutators.Options{Domain: "prebind.dev", Mutators: []mutators.Mutator{tc.mutator}}
			if tc.required {
				o.Required = []string{"test"}
			}
			c, err := mutators.NewChain(o)
			require.NoError(t, err)
			e := newTestEngine(t, func(o *Options) { o.Settings.Mutators = c })
			d := e.Bind(t.Context(), requestFor(gen.Binding(thePod, "node-a", tc.binding...)))
			require.Equal(t, tc.kind, kindOf(d.Err), tc.reason)
			if tc.kind != "" {
				return
			}
			if tc.warns == "" {
				assert.Empty(t, d.Warnings)
			} else if assert.Len(t, d.Warnings, 1) {
				assert.Contains(t, d.Warnings[0], tc.warns)
				assert.Contains(t, d.Warnings[0], "test: ", "the mutator is named")
			}
			d.Warnings = nil
			if tc.want.Labels == nil {
				tc.want.Labels = map[string]string{}
			}
			assert.Equal(t, tc.want, d, tc.reason)
			assert.Equal(t, "allowed", d.Kind())
		})
	}
}

// TestBindWithAllOff: a Binding behaves as if Prebind were not there, but it is
// still validated.
func TestBindWithAllOff(t *testing.T) {
	e := newTestEngine(t, func(o *Options) { o.Cached, o.Live = holding(thePod), holding() })
	d := e.Bind(t.Context(), requestFor(gen.Binding(thePod, "no-such-node")))
	assert.Equal(t, Decision{PassThrough: true}, d, "nothing is read that nothing needs, and nothing is pinned")
	assert.Equal(t, "passed-through", d.Kind())

	d = e.Bind(t.Context(), requestFor(gen.Binding(thePod, "node-a", gen.Annotation("no good", ""))))
	assert.Equal(t, framework.KindInvalid, kindOf(d.Err), "what would lock the pod is refused")

	d = e.Bind(t.Context(), requestFor(gen.Binding(thePod, "node-a", gen.UID("pod-2"))))
	assert.True(t, d.PassThrough, "a pod that the cache has and the API server lacks is gone")
}

func TestBindDryRun(t *testing.T) {
	tells := &checker{plugin: plugin{name: "tells"}, preFlight: func(bc *framework.BindContext) (framework.Next, error) {
		assert.True(t, bc.DryRun)
		bc.Intend("it would write %s", "a")
		bc.Intend("it would write b")
		return framework.Run, nil
	}}
	plain := &plugin{name: "plain"}
	e := engineWith(t, tells, plain)
	r := theRequest()
	r.DryRun = true

	d := e.Bind(t.Context(), r)

	assert.Nil(t, d.Err)
	assert.Equal(t, []string{"dry run: it would write a", "dry run: it would write b"}, d.Warnings)
	assert.Zero(t, tells.preBinds.Load()+plain.preBinds.Load(), "a dry run never calls PreBind")
	assert.Zero(t, tells.rollBacks.Load()+plain.rollBacks.Load(), "nor anything that writes")

	tells.preFlight = func(*framework.BindContext) (framework.Next, error) {
		return framework.Run, framework.Refuse(claim, "no")
	}
	assert.Equal(t, framework.KindRefuse, kindOf(e.Bind(t.Context(), r).Err), "a dry run is refused like any other")
}

func TestBindPreFlight(t *testing.T) {
	cases := map[string]struct {
		reason string
		next   framework.Next
		err    error
		want   framework.Kind
		retry  time.Duration
	}{
		"Run":     {reason: "PreBind is asked for", next: framework.Run},
		"Skip":    {reason: "there is nothing to do", next: framework.Skip},
		"Refuse":  {reason: "a refusal is final", err: framework.Refuse(claim, "no"), want: framework.KindRefuse},
		"Wait":    {reason: "the same bind will do later", err: framework.Wait(claim, "later"), want: framework.KindWait, retry: time.Second},
		"Unknown": {reason: "any other error is the plugin's own failure", err: errors.New("boom"), want: framework.KindInternal},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			p := &checker{plugin: plugin{name: "p"}, preFlight: func(bc *framework.BindContext) (framework.Next, error) {
				assert.Equal(t, types.UID("pod-1"), bc.Pod.UID)
				assert.Equal(t, "node-a", bc.Node.Name)
				assert.Equal(t, "someone", bc.User.Username)
				return tc.next, tc.err
			}}
			e := engineWith(t, p)
			r := theRequest()
			r.User.Username = "someone"
			d := e.Bind(t.Context(), r)
			assert.Equal(t, tc.want, kindOf(d.Err), tc.reason)
			assert.Equal(t, tc.retry, d.RetryAfter)
			assert.Equal(t, tc.next == framework.Run && tc.err == nil, p.preBinds.Load() == 1, "PreBind")
			if tc.err != nil {
				assert.Equal(t, "p", d.Err.Plugin)
			}
		})
	}
}
