// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/gen"
)

var claim = framework.Object{Kind: "PersistentVolumeClaim", Namespace: "default", Name: "data"}

// plugin has only a PreBind.
type plugin struct {
	name    string
	preBind func(ctx context.Context, bc *framework.BindContext) error
}

func (p plugin) Name() string { return p.name }

func (p plugin) PreBind(ctx context.Context, bc *framework.BindContext) error {
	return p.preBind(ctx, bc)
}

func TestPreBind_ClearsTheWait(t *testing.T) {
	r := &Runner{Tracker: Untracked{}}
	bc := &framework.BindContext{}
	p := plugin{"p", func(_ context.Context, bc *framework.BindContext) error {
		bc.Waiting(framework.Waiting{Object: claim, For: "something"})
		return nil
	}}
	q := plugin{"q", func(_ context.Context, bc *framework.BindContext) error {
		assert.Empty(t, bc.WaitingFor(), "the wait of one plugin is not that of the next one")
		return nil
	}}
	require.Nil(t, r.PreBind(t.Context(), []framework.PreBinder{p, q}, bc, func(framework.PreBinder) {}))
	assert.Empty(t, bc.WaitingFor())
}

// doubter is a plugin whose Confirm accepts live reads only.
type doubter struct {
	plugin
	confirm func(bc *framework.BindContext) error
}

func (d doubter) Confirm(_ context.Context, _ framework.Reader, bc *framework.BindContext) error {
	return d.confirm(bc)
}

func TestConfirm_NotByTheCacheAlone(t *testing.T) {
	errEnded := errors.New("the round has ended")
	cases := map[string]struct {
		reason string
		// ends makes the context end during the first Confirm.
		ends bool
		live error
		want string
	}{
		"Confirmed":    {reason: "the live call decides"},
		"NotConfirmed": {reason: "the live call returns the error", live: errors.New("not any more"), want: "not any more"},
		"Ended":        {reason: "without a live call the error is the cause of the end", ends: true, want: errEnded.Error()},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			r := &Runner{Tracker: Untracked{}}
			d := doubter{plugin: plugin{name: "d"}, confirm: func(bc *framework.BindContext) error {
				if bc.Live {
					return tc.live
				}
				if tc.ends {
					cancel(errEnded)
				}
				return errors.New("the cache can be behind")
			}}
			err := r.Confirm(ctx, []framework.PreBinder{d}, &framework.BindContext{})
			if tc.want == "" {
				assert.Nil(t, err, tc.reason)
				return
			}
			require.NotNil(t, err, tc.reason)
			assert.Contains(t, err.Error(), tc.want, tc.reason)
			assert.NotContains(t, err.Error(), "behind", tc.reason)
		})
	}
}

func TestPreBind_PanicIsAnError(t *testing.T) {
	r := &Runner{Tracker: Untracked{}}
	p := plugin{"p", func(context.Context, *framework.BindContext) error { panic("boom") }}
	err := r.PreBind(klog.NewContext(t.Context(), logr.Discard()), []framework.PreBinder{p}, &framework.BindContext{}, func(framework.PreBinder) {})
	require.NotNil(t, err)
	assert.Equal(t, framework.KindInternal, err.Kind)
	assert.Contains(t, err.Error(), "boom")
	assert.Contains(t, err.Error(), "bug")
}

func TestResult(t *testing.T) {
	cases := map[string]struct {
		reason string
		err    error
		want   string
	}{
		"None":        {reason: "success", want: "ok"},
		"Kind":        {reason: "a wrapped answer keeps its kind", err: fmt.Errorf("wrapped: %w", framework.Wait(claim, "later")), want: "waiting"},
		"Any":         {reason: "any other error is a failure", err: errors.New("boom"), want: "internal"},
		"GivenUp":     {reason: "another node is not a failure of the plugin", err: Cause("another node was chosen"), want: "ended"},
		"Stopped":     {reason: "the end of the replica is not a failure", err: framework.Internal(claim, fmt.Errorf("reading: %w", context.Canceled)), want: "ended"},
		"Slow":        {reason: "a slow rollback is a failure", err: context.DeadlineExceeded, want: "internal"},
		"NoAnswer":    {reason: "a slow API server is a wait", err: framework.FromAPI(claim, "reading", context.DeadlineExceeded), want: "waiting"},
		"WithoutKind": {reason: "an error without a kind is a failure", err: &framework.Error{Message: "boom"}, want: "internal"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) { assert.Equal(t, tc.want, Result(tc.err), tc.reason) })
	}
}

// TestReportRolledBack_Bounded: the API server rejects an event with a longer note.
func TestReportRolledBack_Bounded(t *testing.T) {
	recorder := events.NewFakeRecorder(1)
	(&Runner{Events: recorder}).ReportRolledBack(gen.Pod("web"), "node-a", "p", []string{strings.Repeat("x", 4000)})
	assert.LessOrEqual(t, len(<-recorder.Events), maxNote+100)
}
