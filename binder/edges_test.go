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

// gone is an API server whose caller cancels while it waits for a response.
type gone struct{ end context.CancelFunc }

func (g gone) Get(ctx context.Context, _ client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	g.end()
	return fmt.Errorf("Get: %w", ctx.Err())
}

// TestBind_CallEnds: a canceled or timed out call is not a failure. It is neither logged nor
// reported on the pod.
func TestBind_CallEnds(t *testing.T) {
	cases := map[string]struct {
		reason string
		// prepare makes a step of the bind call end, which ends the call.
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
			reason: "a plugin returns the error of its context unchanged",
			prepare: func(o *Options, end context.CancelFunc) {
				o.Settings.Plugins = []framework.PreBinder{&checker{plugin: plugin{name: "p"}, preFlight: func(_ *framework.BindContext) (framework.Next, error) {
					end()
					return framework.Skip, context.Canceled
				}}}
			},
		},
		"VerifyIsNotSkip": {
			reason: "a plugin asks for live reads, for which there is no time: without them it has reserved nothing",
			prepare: func(o *Options, end context.CancelFunc) {
				o.Settings.Plugins = []framework.PreBinder{&checker{plugin: plugin{name: "p"}, preFlight: func(_ *framework.BindContext) (framework.Next, error) {
					end()
					return framework.Verify, nil
				}}}
			},
		},
		"RejectedByTheCache": {
			reason: "the cache alone does not reject a bind",
			prepare: func(o *Options, end context.CancelFunc) {
				o.Settings.Plugins = []framework.PreBinder{&checker{plugin: plugin{name: "p"}, preFlight: func(_ *framework.BindContext) (framework.Next, error) {
					end()
					return framework.Skip, framework.Refuse(claim, "not found")
				}}}
			},
		},
		"Ready": {
			reason: "an ended call is never allowed",
			prepare: func(o *Options, end context.CancelFunc) {
				o.Settings.Plugins = []framework.PreBinder{&checker{plugin: plugin{name: "p"}, preFlight: func(_ *framework.BindContext) (framework.Next, error) {
					end()
					return framework.Skip, nil
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
			assert.Empty(t, d.Failures, "a mutator did not fail")
			assert.Empty(t, events.all())
		})
	}
}

// TestBind_ResourceVersion: a Binding for an outdated version of the pod is rejected before any
// work, and never by the cache alone.
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
		"Same":        {reason: "the cache has the scheduler's version", cached: version("7"), live: version("7")},
		"CacheBehind": {reason: "the scheduler's version is newer than the cache", cached: version("6"), live: version("7"), reads: 1},
		"Outdated":    {reason: "the API server would reject the Binding", cached: version("8"), live: version("8"), want: framework.KindStale, reads: 1},
		"Unknown":     {reason: "the API server would reject the Binding, too", cached: version("6"), live: version("8"), want: framework.KindStale, reads: 1},
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

// TestBind_CorrectedPod: a rejection because of the pod's own annotations counts only for the live
// pod. Otherwise a client that posts the Binding right after the correction gets the final code 422,
// and does not post it again.
func TestBind_CorrectedPod(t *testing.T) {
	version := func(v string, options ...gen.PodOption) *corev1.Pod {
		pod := gen.Pod("web", append([]gen.PodOption{gen.UID("pod-1")}, options...)...)
		pod.ResourceVersion = v
		return pod
	}
	soon, sooner := gen.Annotation("binder.prebind.dev/timeout", "soon"), gen.Annotation("binder.prebind.dev/timeout", "sooner")
	cases := map[string]struct {
		reason       string
		cached, live *corev1.Pod
		broken       bool
		want         framework.Kind
		reads        int32
	}{
		"Corrected": {reason: "the cache is behind the correction", cached: version("1", soon), live: version("2"), reads: 1},
		"Required": {
			reason: "the same holds for required plugins", cached: version("1", gen.Annotation("binder.prebind.dev/require", "q")),
			live: version("2", gen.Annotation("binder.prebind.dev/require", "p")), reads: 1,
		},
		"Invalid":      {reason: "the API server agrees", cached: version("1", soon), live: version("1", soon), want: framework.KindInvalid, reads: 1},
		"StillInvalid": {reason: "the correction is invalid, too", cached: version("1", soon), live: version("2", sooner), want: framework.KindInvalid, reads: 1},
		"Recreated": {
			reason: "the bind is not for the new pod", cached: version("1", soon), live: gen.Pod("web", gen.UID("pod-2")),
			want: framework.KindInvalid, reads: 1,
		},
		"Unreadable": {
			reason: "without the API server, the cache does not reject the bind", cached: version("1", soon), live: version("1", soon), broken: true,
			want: framework.KindInternal, reads: 1,
		},
		"Valid": {reason: "an accepted pod costs no request", cached: version("1"), live: version("2", soon)},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			live := holding(tc.live)
			if tc.broken {
				live = brokenStore(errors.New("boom"))
			}
			e := newTestEngine(t, func(o *Options) {
				o.Cached, o.Live, o.Settings.Plugins = holding(tc.cached, theNode), live, []framework.PreBinder{&plugin{name: "p"}}
			})
			d := e.Bind(t.Context(), theRequest())
			require.Equal(t, tc.want, kindOf(d.Err), "%s: %v", tc.reason, d.Err)
			assert.Equal(t, tc.reads, live.reads.Load(), "live reads")
		})
	}
}

// TestBind_Names: invalid names are rejected before any read.
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
		"NoName":         {reason: "the API server rejects the Binding", pod: "web", in: "default", node: "node-a", want: Decision{PassThrough: true}},
		"ImpossiblePod":  {reason: "a pod cannot have this name", pod: "we/b", named: "we/b", in: "default", node: "node-a", want: Decision{PassThrough: true}},
		"LongPod":        {reason: "a pod cannot have this name", pod: long, named: long, in: "default", node: "node-a", want: Decision{PassThrough: true}},
		"ImpossibleHome": {reason: "a namespace cannot have this name", pod: "web", named: "web", in: "../x", node: "node-a", want: Decision{PassThrough: true}},
		"SlashInNode":    {reason: "a path is not a valid node name", pod: "web", named: "web", in: "default", node: "node-a/status", kind: framework.KindRefuse},
		"LongNode":       {reason: "the answer does not repeat the long name", pod: "web", named: "web", in: "default", node: long, kind: framework.KindRefuse},
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
			assert.Contains(t, d.Err.Error(), "invalid name")
			assert.Less(t, len(d.Err.Error()), 2000)
		})
	}
}

// TestDecision_Bounded: the texts of a decision have a maximum length, and the original error is
// unchanged.
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
	assert.Len(t, err.Message, len(huge), "the original is unchanged")

	small := Decision{Err: framework.Refuse(claim, "no"), Warnings: []string{"a"}}
	assert.Equal(t, small, small.bounded(), "short texts are unchanged")
}

// List implements client.Reader. The engine does not list.
func (gone) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return errors.New("unexpected list")
}
