// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/mutators"
	"github.com/prebind/prebind/test/gen"
)

// gone is an API server whose caller gives up while it waits for an answer.
type gone struct{ end context.CancelFunc }

func (g gone) Get(ctx context.Context, _ client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	g.end()
	return fmt.Errorf("Get: %w", ctx.Err())
}

// TestBind_CallEnds: a client that goes away, or a time that is over, is nobody's
// failure. Nothing is reported about it, neither to the log nor to the pod.
func TestBind_CallEnds(t *testing.T) {
	cases := map[string]struct {
		reason string
		// prepare lets the call end by end in the middle of a step.
		prepare func(o *Options, end context.CancelFunc)
	}{
		"ReadingThePod": {
			reason:  "the cache does not have the pod",
			prepare: func(o *Options, end context.CancelFunc) { o.Cached, o.Live = holding(theNode), gone{end} },
		},
		"ReadingTheNode": {
			reason:  "the cache does not have the node",
			prepare: func(o *Options, end context.CancelFunc) { o.Cached, o.Live = holding(thePod), gone{end} },
		},
		"PreFlight": {
			reason: "a plugin returns the error of its context as it is",
			prepare: func(o *Options, end context.CancelFunc) {
				o.Settings.Plugins = []framework.PreBinder{&checker{plugin: plugin{name: "p"}, preFlight: func(_ *framework.BindContext) (framework.Next, error) {
					end()
					return framework.Skip, context.Canceled
				}}}
			},
		},
		"ReadingClaims": {
			reason: "a required mutator needs the devices of the pod's claims",
			prepare: func(o *Options, end context.CancelFunc) {
				pod := gen.Pod("web", gen.UID("pod-1"))
				pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu"}}
				o.Cached = holding(pod, theNode)
				o.Settings.Mutators = chain(t, mutatorFunc(func(in mutators.Input) (mutators.Output, error) { return mutators.Output{}, in.DevicesErr }))
				o.Settings.Claimed = func(ctx context.Context, _ *corev1.Pod) ([]framework.Device, error) {
					end()
					return nil, ctx.Err()
				}
			},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			events := &recorder{}
			ctx, end := context.WithCancel(t.Context())
			defer end()
			e := newTestEngine(t, func(o *Options) {
				o.Events = events
				o.Settings.Plugins = []framework.PreBinder{&plugin{name: "p"}}
				tc.prepare(o, end)
			})
			d := e.Bind(ctx, theRequest())
			require.Equal(t, framework.KindWait, kindOf(d.Err), "%s: %v", tc.reason, d.Err)
			assert.Positive(t, d.RetryAfter)
			assert.Empty(t, d.Failures, "no mutator has failed")
			assert.Empty(t, events.all())
		})
	}
}

// TestBind_ResourceVersion: a Binding for a version of the pod that is outdated is
// answered before anything is done for it, and never by the cache alone.
func TestBind_ResourceVersion(t *testing.T) {
	version := func(v string) *corev1.Pod {
		pod := gen.Pod("web", gen.UID("pod-1"))
		pod.ResourceVersion = v
		return pod
	}
	cases := map[string]struct {
		reason       string
		cached, live *corev1.Pod
		want         framework.Kind
		reads        int32
	}{
		"Same":        {reason: "the cache has the version that the scheduler saw", cached: version("7"), live: version("7")},
		"CacheBehind": {reason: "the scheduler saw more than the cache", cached: version("6"), live: version("7"), reads: 1},
		"Outdated":    {reason: "the API server would not bind it", cached: version("8"), live: version("8"), want: framework.KindStale, reads: 1},
		"Unknown":     {reason: "the API server would not bind it either", cached: version("6"), live: version("8"), want: framework.KindStale, reads: 1},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			p := &plugin{name: "p"}
			live := holding(tc.live)
			e := newTestEngine(t, func(o *Options) {
				o.Cached, o.Live, o.Settings.Plugins = holding(tc.cached, theNode), live, []framework.PreBinder{p}
			})
			r := theRequest()
			r.Binding.ResourceVersion = "7"
			d := e.Bind(t.Context(), r)
			assert.Equal(t, tc.want, kindOf(d.Err), "%s: %v", tc.reason, d.Err)
			assert.Equal(t, tc.reads, live.reads.Load(), "live reads")
			assert.Equal(t, tc.want == "", p.preBinds.Load() == 1)
		})
	}
}

// TestBind_Names: names are checked before anything is done with them.
func TestBind_Names(t *testing.T) {
	long := strings.Repeat("n", 5<<20)
	cases := map[string]struct {
		reason         string
		pod, in, named string
		node           string
		want           Decision
		kind           framework.Kind
	}{
		"NameInURL":      {reason: "the API server rejects a Binding whose name is not that of the URL", pod: "web", named: "db", in: "default", node: "node-a", want: Decision{PassThrough: true}},
		"NoName":         {reason: "nor does it take the name of the URL", pod: "web", in: "default", node: "node-a", want: Decision{PassThrough: true}},
		"ImpossiblePod":  {reason: "there is no pod of that name", pod: "we/b", named: "we/b", in: "default", node: "node-a", want: Decision{PassThrough: true}},
		"LongPod":        {reason: "there is no pod of that name", pod: long, named: long, in: "default", node: "node-a", want: Decision{PassThrough: true}},
		"ImpossibleHome": {reason: "there is no namespace of that name", pod: "web", named: "web", in: "../x", node: "node-a", want: Decision{PassThrough: true}},
		"SlashInNode":    {reason: "a path is not the name of a node", pod: "web", named: "web", in: "default", node: "node-a/status", kind: framework.KindRefuse},
		"LongNode":       {reason: "the answer does not repeat it", pod: "web", named: "web", in: "default", node: long, kind: framework.KindRefuse},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			cached, live := holding(thePod, theNode), holding(thePod, theNode)
			e := newTestEngine(t, func(o *Options) {
				o.Cached, o.Live, o.Settings.Plugins = cached, live, []framework.PreBinder{&plugin{name: "p"}}
			})
			r := theRequest()
			r.Pod.Name, r.Pod.Namespace, r.Binding.Name, r.Binding.Target.Name = tc.pod, tc.in, tc.named, tc.node
			d := e.Bind(t.Context(), r)
			assert.Zero(t, cached.reads.Load()+live.reads.Load(), "nothing is read")
			if tc.kind == "" {
				assert.Equal(t, tc.want, d, tc.reason)
				return
			}
			require.Equal(t, tc.kind, kindOf(d.Err), "%s: %v", tc.reason, d.Err)
			assert.Contains(t, d.Err.Error(), "not found")
			assert.Less(t, len(d.Err.Error()), 2000)
		})
	}
}

// TestDecision_Bounded: whatever plugins and mutators echo, a decision has texts of
// bounded length, and what others hold of it stays as it is.
func TestDecision_Bounded(t *testing.T) {
	huge := strings.Repeat("ä", 1<<20)
	err := framework.Invalid(framework.Object{Kind: huge, Namespace: huge, Name: huge}, huge).Advise("%s", huge).Because(errScripted)
	warnings := make([]string, 1000)
	for i := range warnings {
		warnings[i] = huge
		err.Fields = append(err.Fields, framework.Field{Path: huge, Message: huge})
	}
	d := Decision{Err: err, Warnings: warnings}.bounded()
	total := len(d.Err.Error())
	for _, f := range d.Err.Fields {
		total += len(f.Path) + len(f.Message)
	}
	for _, w := range d.Warnings {
		total += len(w)
	}
	assert.Less(t, total, 150<<10)
	assert.True(t, utf8.ValidString(d.Err.Error()))
	assert.Equal(t, "and 980 more", d.Err.Fields[maxFields].Message)
	assert.ErrorIs(t, d.Err, errScripted, "the cause is kept")
	assert.Len(t, err.Message, len(huge), "an attempt that holds the error keeps it")

	small := Decision{Err: framework.Refuse(claim, "no"), Warnings: []string{"a"}}
	assert.Equal(t, small, small.bounded(), "ordinary texts stay as they are")
}

// List implements client.Reader. The engine lists nothing.
func (gone) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return errors.New("unexpected list")
}
