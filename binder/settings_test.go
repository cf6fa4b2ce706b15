// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/prebind/prebind/binder/framework"
)

func TestPolicyFor(t *testing.T) {
	s := &Settings{
		Mode: ModeEnforce, PreBindTimeout: 10 * time.Minute, MaxPreBindTimeout: 30 * time.Minute,
		Namespaces: []NamespaceRule{
			{Names: []string{"shop"}, Mode: ModeOff},
			{Names: []string{"shop", "batch-*"}, Mode: ModeAudit, PreBindTimeout: time.Hour},
			{Names: []string{"quick"}, MaxPreBindTimeout: time.Minute},
			{Names: []string{"*-test"}, Mode: ModeEnforce, PreBindTimeout: time.Minute, MaxPreBindTimeout: 2 * time.Minute},
		},
	}
	cases := map[string]struct {
		reason, namespace string
		want              policy
	}{
		"General":  {reason: "no rule matches", namespace: "web", want: policy{ModeEnforce, 10 * time.Minute, 30 * time.Minute}},
		"First":    {reason: "only the first rule applies", namespace: "shop", want: policy{ModeOff, 10 * time.Minute, 30 * time.Minute}},
		"Pattern":  {reason: "a timeout above the limit raises the limit", namespace: "batch-7", want: policy{ModeAudit, time.Hour, time.Hour}},
		"NoMatch":  {reason: "a pattern matches the whole name", namespace: "my-batch-7", want: policy{ModeEnforce, 10 * time.Minute, 30 * time.Minute}},
		"Limit":    {reason: "a lower limit lowers the timeout", namespace: "quick", want: policy{ModeEnforce, time.Minute, time.Minute}},
		"AllThree": {reason: "a rule can have all fields", namespace: "a-test", want: policy{ModeEnforce, time.Minute, 2 * time.Minute}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tc.want, s.policyFor(tc.namespace), tc.reason)
		})
	}
}

// settingsOf returns a copy of the engine's settings.
func settingsOf(e *Engine) Settings { return *e.settings.Load() }

// TestConfigure_AppliesToTheNextCall: invalid settings change nothing.
func TestConfigure_AppliesToTheNextCall(t *testing.T) {
	p := &plugin{name: "p", preBind: func(context.Context, *framework.BindContext) error { return framework.Refuse(claim, "no") }}
	e := engineWith(t, p)
	require.NotNil(t, e.Bind(t.Context(), theRequest()).Err)

	off := settingsOf(e)
	off.Plugins = nil
	require.NoError(t, e.Configure(off))
	assert.Nil(t, e.Bind(t.Context(), theRequest()).Err, "the plugin is off")

	bad := off
	bad.Plugins = []framework.PreBinder{p, p}
	require.ErrorContains(t, e.Configure(bad), "registered twice")
	assert.Nil(t, e.Bind(t.Context(), theRequest()).Err, "invalid settings do not apply")

	exempt := settingsOf(e)
	exempt.Plugins, exempt.Namespaces = []framework.PreBinder{p}, []NamespaceRule{{Names: []string{"default"}, Mode: ModeOff}}
	require.NoError(t, e.Configure(exempt))
	d := e.Bind(t.Context(), theRequest())
	assert.True(t, d.PassThrough, "ModeOff passes every Binding")
	assert.Equal(t, Decision{PassThrough: true}, d)
}

// TestConfigure_DuringAWait: a waiting bind is checked by a plugin that is enabled during the wait,
// and uses and rolls back the writes of one that is disabled.
func TestConfigure_DuringAWait(t *testing.T) {
	cases := map[string]struct {
		reason string
		then   func(w *waiter) []framework.PreBinder
		err    string
	}{
		"SwitchedOn": {reason: "an enabled plugin is not skipped", err: "the late one", then: func(w *waiter) []framework.PreBinder {
			return []framework.PreBinder{w, refusing("late", "the late one")}
		}},
		"SwitchedOff": {reason: "the finished PreBind allows the bind", then: func(*waiter) []framework.PreBinder { return []framework.PreBinder{nothingToDo("other")} }},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWaiter()
				e := newTestEngine(t, func(o *Options) { o.Settings.Plugins, o.Live = []framework.PreBinder{w}, holding(thePod, theNode) })
				first := e.Bind(t.Context(), theRequest())
				require.True(t, framework.IsKind(first.Err, framework.KindWait))

				s := settingsOf(e)
				s.Plugins = tc.then(w)
				require.NoError(t, e.Configure(s))
				decided := later(t.Context(), e, theRequest())
				synctest.Wait()
				w.release <- nil
				d := <-decided
				if tc.err == "" {
					require.Nil(t, d.Err, tc.reason)
					assert.NotEmpty(t, d.Annotations["binder.prebind.dev/attempt"])
				} else {
					assert.ErrorContains(t, d.Err, tc.err, tc.reason)
				}
				pass(2 * time.Minute)
				assert.EqualValues(t, 1, w.rollBacks.Load(), "the pod was not bound")
			})
		})
	}
}

// refusing is a plugin whose PreFlight rejects.
func refusing(name, message string) *checker {
	return &checker{plugin: plugin{name: name}, preFlight: func(*framework.BindContext) (framework.Next, error) {
		return framework.Run, framework.Refuse(claim, "%s", message)
	}}
}

func TestNames_AreUnique(t *testing.T) {
	for name, names := range map[string][]string{"Twice": {"p", "p"}, "Mutator": {"test"}, "Binder": {"binder"}, "NoPrefix": {"No Name"}} {
		t.Run(name, func(t *testing.T) {
			o := Options{
				Cached: holding(), Live: holding(), Replica: "here",
				Settings: Settings{
					Mode: ModeEnforce, Mutators: chain(t, mutatorFunc(nil)),
					Hold: 1, MaxHolds: 1, PreBindTimeout: 1, MaxPreBindTimeout: 1,
				},
			}
			e := newTestEngine(t, nil)
			o.Changes, o.Events, o.Clock = framework.NewHub(), e.runner.Events, e.clock
			for _, n := range names {
				o.Settings.Plugins = append(o.Settings.Plugins, &plugin{name: n})
			}
			_, err := New(o)
			assert.ErrorContains(t, err, `"`+names[0]+`"`)
		})
	}
}
