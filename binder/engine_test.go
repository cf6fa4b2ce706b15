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
		Changes: framework.NewHub(), Events: &recorder{}, Replica: "here",
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
		"NoMutators":      {reason: "an empty chain has no mutators, nil is an error", change: func(o *Options) { o.Settings.Mutators = nil }},
		"NoClock":         {reason: "required", change: func(o *Options) { o.Clock = nil }},
		"NoChanges":       {reason: "required", change: func(o *Options) { o.Changes = nil }},
		"NoEvents":        {reason: "required", change: func(o *Options) { o.Events = nil }},
		"NoReplica":       {reason: "the ID of an attempt contains it", change: func(o *Options) { o.Replica = "" }},
		"ReplicaWithDash": {reason: "the ID of an attempt could not be split", change: func(o *Options) { o.Replica = "a-b" }},
		"TwoPlugins":      {reason: "other names are valid", change: func(o *Options) { o.Settings.Plugins = []framework.PreBinder{&plugin{name: "a"}, &plugin{name: "b"}} }, ok: true},
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

// TestBind_PassesThrough: the API server gives its own answer, and Prebind has no side effect.
func TestBind_PassesThrough(t *testing.T) {
	bound := gen.Pod("web", gen.UID("pod-1"), gen.BoundTo("node-b"))
	gated := gen.Pod("web", gen.UID("pod-1"), gen.Gate("g"))
	cases := map[string]struct {
		reason       string
		binding      *corev1.Binding
		cached, live *store
		liveReads    int32
		// pins is the UID of the Binding in the patch.
		pins types.UID
	}{
		"EmptyTarget": {
			reason:  "without a target nothing is read",
			binding: gen.Binding(thePod, ""), cached: holding(thePod, theNode), live: holding(),
		},
		"OtherTarget": {
			reason:  "Prebind decides on nodes only",
			binding: gen.Binding(thePod, "node-a", gen.TargetKind("Machine")), cached: holding(thePod, theNode), live: holding(),
		},
		"UIDIsOld": {
			reason:  "the API server rejects the UID of a deleted pod",
			binding: gen.Binding(thePod, "node-a", gen.UID("pod-0")), cached: holding(thePod, theNode), live: holding(thePod), liveReads: 1,
		},
		"Terminating": {
			reason:  "the API server rejects the Binding",
			binding: gen.Binding(thePod, "node-a"), cached: holding(terminatingCopy(), theNode), live: holding(terminatingCopy()), liveReads: 1, pins: "pod-1",
		},
		"Gated": {
			reason:  "the API server rejects the Binding",
			binding: gen.Binding(thePod, "node-a"), cached: holding(gated, theNode), live: holding(gated), liveReads: 1, pins: "pod-1",
		},
		"PodBound": {
			reason:  "the cache of pending pods lacks it, and the API server rejects the Binding",
			binding: gen.Binding(thePod, "node-a"), cached: holding(theNode), live: holding(bound), liveReads: 1, pins: "pod-1",
		},
		"PodBoundInCache": {
			reason:  "a bound pod in the cache is read again",
			binding: gen.Binding(thePod, "node-a"), cached: holding(bound, theNode), live: holding(bound), liveReads: 1, pins: "pod-1",
		},
		"BoundAndTerminating": {
			reason:  "the API server answers for a bound pod",
			binding: gen.Binding(thePod, "node-a"), cached: holding(theNode), liveReads: 1, pins: "pod-1",
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
			d.ResourceVersion = "" // See TestUnbindable.
			assert.Equal(t, Decision{PassThrough: true, UID: tc.pins}, d, tc.reason)
			assert.Equal(t, tc.liveReads, tc.live.reads.Load(), "live reads")
			assert.Zero(t, p.preFlights.Load()+p.preBinds.Load(), "no plugin runs")
		})
	}
}

func TestBind_ReadsPod(t *testing.T) {
	cases := map[string]struct {
		reason       string
		cached, live *store
		want         framework.Kind
		liveReads    int32
	}{
		"Cached": {
			reason: "a cached pod costs no request",
			cached: holding(thePod, theNode), live: holding(thePod),
		},
		"Missed": {
			reason: "a missing pod costs one live read",
			cached: holding(theNode), live: holding(thePod), liveReads: 1,
		},
		"CachedUIDIsOld": {
			reason: "the cache lacks the new pod",
			cached: holding(gen.Pod("web", gen.UID("pod-0")), theNode), live: holding(thePod), liveReads: 1,
		},
		"CachedGateIsOld": {
			reason: "the gate was removed, and the cache is stale",
			cached: holding(gen.Pod("web", gen.UID("pod-1"), gen.Gate("g")), theNode), live: holding(thePod), liveReads: 1,
		},
		"Gone": {
			reason: "a pod that is created a moment later must not be bound unchecked",
			cached: holding(theNode), live: holding(), want: framework.KindStale, liveReads: 1,
		},
		"CachedIsGone": {
			reason: "the Binding has a UID that the cache lacks",
			cached: holding(gen.Pod("web", gen.UID("pod-0")), theNode), live: holding(), want: framework.KindStale, liveReads: 1,
		},
		"CacheFails": {
			reason: "the pod is read live if the cache fails",
			cached: brokenStore(errors.New("no informer")), live: holding(thePod, theNode), liveReads: 2,
		},
		"LiveFails": {
			reason: "without the pod there is no decision",
			cached: holding(theNode), live: brokenStore(errors.New("boom")), want: framework.KindInternal, liveReads: 1,
		},
		"LiveOverloaded": {
			reason: "an overloaded API server recovers",
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
			assert.Equal(t, tc.want == "", checks == 1, "PreFlight runs for a valid pod")
			if tc.want == "" {
				return
			}
			assert.Equal(t, "binder", d.Err.Plugin)
			assert.Equal(t, framework.Object{Kind: "Pod", Namespace: "default", Name: "web"}, d.Err.Object)
			assert.NotEmpty(t, d.Err.Advice)
			assert.Equal(t, tc.want == framework.KindWait, d.RetryAfter >= time.Second, "only a wait has a RetryAfter")
		})
	}
}

func TestBind_ReadsNode(t *testing.T) {
	other := errors.New("boom")
	cases := map[string]struct {
		reason string
		cached *store
		live   *store
		want   framework.Kind
		reads  int32
	}{
		"Cached":  {reason: "no call", cached: holding(thePod, theNode), live: holding(theNode)},
		"Missed":  {reason: "the cache may lack a new node", cached: holding(thePod), live: holding(theNode), reads: 1},
		"Unknown": {reason: "the node does not exist", cached: holding(thePod), live: holding(), want: framework.KindRefuse, reads: 1},
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

func TestBind_Mutates(t *testing.T) {
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
			reason:  "the UID of the Binding is unchanged",
			mutator: writes,
			binding: []gen.BindingOption{gen.UID("pod-1")},
			want:    Decision{Annotations: map[string]string{"test.prebind.dev/node": "node-a"}},
		},
		"Replaced": {
			reason:  "a replaced value causes a warning",
			mutator: writes,
			binding: []gen.BindingOption{gen.UID("pod-1"), gen.Annotation("test.prebind.dev/node", "mine")},
			want: Decision{
				Annotations: map[string]string{"test.prebind.dev/node": "node-a"},
				Conflicts:   []mutators.Conflict{{Mutator: "test", Field: "annotation", Key: "test.prebind.dev/node", Source: "Binding"}},
			},
			warns: "test.prebind.dev/node",
		},
		"Fails": {
			reason:  "a failing mutator does not reject the bind",
			mutator: breaks,
			binding: []gen.BindingOption{gen.UID("pod-1")},
			want:    Decision{Annotations: map[string]string{}, Failures: []mutators.Failure{{Mutator: "test", Err: errNoIdea}}},
			warns:   "no idea",
		},
		"Labels": {
			reason:  "labels are added like annotations",
			mutator: labels,
			binding: []gen.BindingOption{gen.UID("pod-1")},
			want:    Decision{Annotations: map[string]string{}, Labels: map[string]string{"test.prebind.dev/rack": "r1"}},
		},
		"LabelKept": {
			reason:  "a label of the user stays, with a warning",
			mutator: labels,
			binding: []gen.BindingOption{gen.UID("pod-1"), gen.Label("test.prebind.dev/rack", "mine")},
			want: Decision{
				Annotations: map[string]string{},
				Conflicts:   []mutators.Conflict{{Mutator: "test", Field: "label", Key: "test.prebind.dev/rack", Source: "Binding", Kept: true}},
			},
			warns: "test.prebind.dev/rack",
		},
		"RequiredFails": {
			reason:   "a required mutator must succeed",
			mutator:  breaks,
			required: true,
			kind:     framework.KindRefuse,
		},
		"TooMuch": {
			reason:  "metadata that blocks updates of the pod is rejected",
			mutator: floods,
			kind:    framework.KindInvalid,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			o := mutators.Options{Mutators: []mutators.Mutator{tc.mutator}}
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

// TestBind_AllDisabled: Bindings pass unchanged, but their metadata is still validated.
func TestBind_AllDisabled(t *testing.T) {
	e := newTestEngine(t, func(o *Options) { o.Cached, o.Live = holding(thePod), holding() })
	d := e.Bind(t.Context(), requestFor(gen.Binding(thePod, "no-such-node")))
	assert.Equal(t, Decision{PassThrough: true}, d, "the node is not read, and the UID is not pinned")
	assert.Equal(t, "passed-through", d.Kind())

	d = e.Bind(t.Context(), requestFor(gen.Binding(thePod, "node-a", gen.Annotation("no good", ""))))
	assert.Equal(t, framework.KindInvalid, kindOf(d.Err), "metadata that blocks updates of the pod is rejected")

	d = e.Bind(t.Context(), requestFor(gen.Binding(thePod, "node-a", gen.UID("pod-2"))))
	require.ErrorIs(t, d.Err, ErrPodNotFound)
}

func TestBind_DryRun(t *testing.T) {
	writes := &checker{plugin: plugin{name: "writes"}, preFlight: func(bc *framework.BindContext) (framework.Next, error) {
		assert.True(t, bc.DryRun)
		bc.Intend("it would write %s", "a")
		bc.Intend("it would write b")
		return framework.Run, nil
	}}
	plain := &plugin{name: "plain"}
	e := engineWith(t, writes, plain)
	r := theRequest()
	r.DryRun = true

	d := e.Bind(t.Context(), r)

	assert.Nil(t, d.Err)
	assert.Equal(t, []string{"dry run: it would write a", "dry run: it would write b"}, d.Warnings)
	assert.Zero(t, writes.preBinds.Load()+plain.preBinds.Load(), "a dry run never calls PreBind")
	assert.Zero(t, writes.rollBacks.Load()+plain.rollBacks.Load(), "a dry run never writes")

	writes.preFlight = func(*framework.BindContext) (framework.Next, error) {
		return framework.Run, framework.Refuse(claim, "no")
	}
	assert.Equal(t, framework.KindRefuse, kindOf(e.Bind(t.Context(), r).Err), "a dry run is rejected like any bind")
}

func TestBind_PreFlight(t *testing.T) {
	cases := map[string]struct {
		reason string
		next   framework.Next
		err    error
		want   framework.Kind
		retry  time.Duration
	}{
		"Run":     {reason: "PreBind must run", next: framework.Run},
		"Skip":    {reason: "the plugin has no work to do", next: framework.Skip},
		"Refuse":  {reason: "a rejection is final", err: framework.Refuse(claim, "no"), want: framework.KindRefuse},
		"Wait":    {reason: "the same bind can succeed later", err: framework.Wait(claim, "later"), want: framework.KindWait, retry: minRetryAfter},
		"Unknown": {reason: "any other error is a failure of the plugin", err: errors.New("boom"), want: framework.KindInternal},
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
