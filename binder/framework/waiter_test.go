// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/test/gen"
)

func TestWaiter_PreFlight(t *testing.T) {
	wait, errRead := Waiting{Object: Object{Kind: "Job", Name: "a"}, For: "the Job to complete"}, errors.New("unreadable")
	cases := map[string]struct {
		reason  string
		waiting Waiting
		err     error
		next    Next
		waits   []Waiting
	}{
		"Ready":    {reason: "PreBind has nothing to do", next: Skip},
		"Waits":    {reason: "a dry run shows the wait", waiting: wait, next: Run, waits: []Waiting{wait}},
		"Rejected": {reason: "PreFlight returns the error of the look, so that the engine repeats it on live objects", err: errRead, next: Run},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			w := NewWaiter("after", Handle{}, func(context.Context, Reader, *BindContext) (Waiting, error) { return tc.waiting, tc.err })
			bc := &BindContext{}
			require.NoError(t, w.SetupBindContextExtension(t.Context(), nil, bc), "Setup does not reject")
			next, err := w.PreFlight(bc)
			require.ErrorIs(t, err, tc.err, tc.reason)
			assert.Equal(t, tc.next, next, tc.reason)
			assert.Equal(t, tc.waits, bc.ExpectedWaits(), tc.reason)
		})
	}
	_, err := NewWaiter("after", Handle{}, nil).PreFlight(&BindContext{})
	require.Error(t, err, "PreFlight without Setup is a bug")
}

func TestWaiter_OnAnnotation(t *testing.T) {
	w := NewWaiter("after", Handle{}, nil)
	_, asks := PreBinder(w).(OnRequest)
	assert.False(t, asks, "by default, a Waiter takes part in every bind")
	on, asks := w.OnAnnotation(ByBinding).(OnRequest)
	require.True(t, asks)
	assert.Equal(t, ByBinding, on.RequestedBy())
}

// The cache of a Waiter differs from the API server, for example because the object has changed
// back.
func TestWaiter_ConfirmsLive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod, node := gen.Pod("a"), gen.Node("node-a")
		s := newScene(pod, node)
		s.bc = &BindContext{Pod: pod, Node: node, Binding: gen.Binding(pod, "node-a")}
		w := NewWaiter("gate", s.h, func(_ context.Context, _ Reader, bc *BindContext) (Waiting, error) {
			s.looks++
			if bc.Pod.Labels["go"] == "" {
				return Waiting{For: "the label"}, nil
			}
			return Waiting{}, nil
		})
		label := func(c client.Client) {
			changed := &corev1.Pod{}
			require.NoError(t, c.Get(t.Context(), client.ObjectKeyFromObject(pod), changed))
			changed.Labels = map[string]string{"go": "yes"}
			require.NoError(t, c.Update(t.Context(), changed))
		}
		go func() { s.result <- w.PreBind(t.Context(), s.bc) }()
		ended, err := s.ended()
		require.False(t, ended, "%v", err)

		label(s.cached)
		s.changed()
		ended, err = s.ended()
		require.False(t, ended, "the API server does not agree with the cache: %v", err)
		assert.Equal(t, 3, s.looks, "the Waiter looks once at the start, once in the cache, and once live")

		label(s.live)
		s.changed()
		ended, err = s.ended()
		assert.True(t, ended)
		assert.NoError(t, err)
	})
}

// A change of an object that the look does not read wakes the Waiter.
func TestWaiter_WokenBy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod, node := gen.Pod("a"), gen.Node("node-a")
		s, ready := newScene(pod, node), false
		s.bc = &BindContext{Pod: pod, Node: node, Binding: gen.Binding(pod, "node-a")}
		w := NewWaiter("gate", s.h, func(_ context.Context, _ Reader, bc *BindContext) (Waiting, error) {
			if !ready {
				return Waiting{For: "the rule"}, nil
			}
			bc.SetLabel("gate", "example.com/l", "last")
			bc.Warn("it waited")
			return Waiting{}, nil
		}).WokenBy(AllOf(&storagev1.CSINode{}, ""))
		go func() { s.result <- w.PreBind(t.Context(), s.bc) }()
		ended, err := s.ended()
		require.False(t, ended, "%v", err)
		ready = true
		s.h.Changes.Changed(RefTo(&storagev1.CSIDriver{}, "", "d"))
		ended, err = s.ended()
		require.False(t, ended, "another kind has changed: %v", err)
		s.h.Changes.Changed(RefTo(&storagev1.CSINode{}, "", "any"))
		ended, err = s.ended()
		require.True(t, ended)
		require.NoError(t, err)
		assert.Equal(t, "last", s.bc.Labels()["gate"]["example.com/l"], "the last look counts")
		assert.Equal(t, []string{"it waited"}, s.bc.Warnings())
	})
}

func TestWaitAtMost(t *testing.T) {
	since := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	wait := Waiting{Object: Object{Kind: "Node", Name: "a"}, For: "the driver"}
	bc := &BindContext{Since: since, Now: since.Add(59 * time.Second)}
	got, err := bc.WaitAtMost(time.Minute, wait)
	require.NoError(t, err)
	assert.Equal(t, since.Add(time.Minute), got.Until, "Await looks again at the limit")
	bc.Now = got.Until
	_, err = bc.WaitAtMost(time.Minute, wait)
	require.True(t, IsKind(err, KindRefuse), "%v", err)
	assert.Equal(t, "Node a: still waiting for the driver after 1m0s; choose another node", err.Error())
}

func TestWaitAtMost_KeepsTheEarlierTime(t *testing.T) {
	since := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	bc := &BindContext{Since: since, Now: since}
	for name, tc := range map[string]struct {
		reason      string
		until, want time.Duration
	}{
		"Earlier": {reason: "the plugin requested a look before the limit", until: 10 * time.Second, want: 10 * time.Second},
		"Later":   {reason: "the limit comes first", until: time.Hour, want: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := bc.WaitAtMost(time.Minute, Waiting{For: "the driver", Until: since.Add(tc.until)})
			require.NoError(t, err)
			assert.Equal(t, since.Add(tc.want), got.Until, tc.reason)
		})
	}
}

func TestBuild_ChecksTheType(t *testing.T) {
	build := Build(func(Handle, *oneArgument) (PreBinder, error) { return NewWaiter("a", Handle{}, nil), nil })
	p, err := build(Handle{}, &oneArgument{})
	require.NoError(t, err)
	assert.Equal(t, "a", p.Name())
	_, err = build(Handle{}, nil)
	require.Error(t, err)
}

// oneArgument are arguments without fields.
type oneArgument struct{ Arguments }

func TestParameter(t *testing.T) {
	const key = "after.prebind.dev/jobs"
	pod := gen.Pod("web", gen.Annotation(key, "of-pod"))
	cases := map[string]struct {
		reason  string
		source  Source
		binding *corev1.Binding
		pod     *corev1.Pod
		value   string
		on      string
	}{
		"Pod":       {reason: "the source includes the pod", source: ByBindingOrPod, binding: gen.Binding(pod, "a"), pod: pod, value: "of-pod", on: "Pod"},
		"NotPod":    {reason: "the source excludes the pod", source: ByBinding, binding: gen.Binding(pod, "a"), pod: pod, on: "Binding"},
		"Overrides": {reason: "the Binding's value wins", source: ByBindingOrPod, binding: gen.Binding(pod, "a", gen.Annotation(key, "")), pod: pod, on: "Binding"},
		"Missing":   {reason: "a plugin that is required without its annotation still names the key", source: ByBindingOrPod, binding: gen.Binding(pod, "a"), pod: gen.Pod("web"), on: "Binding"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			p := (&BindContext{Pod: tc.pod, Binding: tc.binding}).Parameter("after", tc.source, "jobs")
			assert.Equal(t, Parameter{Annotation: key, Value: tc.value, On: Object{Kind: tc.on, Namespace: "default", Name: "web"}}, p, tc.reason)
		})
	}
	err := (&BindContext{Pod: pod, Binding: &corev1.Binding{}}).Parameter("after", ByBindingOrPod, "jobs").Invalid("must be %s", "empty")
	assert.Equal(t, "Pod default/web: annotation after.prebind.dev/jobs must be empty; correct the annotation", err.Error())
	assert.Equal(t, []Field{{Path: "metadata.annotations[" + key + "]", Message: "must be empty"}}, err.Fields)
}
