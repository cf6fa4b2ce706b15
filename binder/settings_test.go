// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

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

func TestBind_ModeOff(t *testing.T) {
	e := newTestEngine(t, func(o *Options) {
		o.Settings.Plugins = []framework.PreBinder{&plugin{name: "p", preBind: func(context.Context, *framework.BindContext) error { return framework.Refuse(claim, "no") }}}
		o.Settings.Namespaces = []NamespaceRule{{Names: []string{"default"}, Mode: ModeOff}}
	})
	assert.Equal(t, Decision{PassThrough: true}, e.Bind(t.Context(), theRequest()), "ModeOff passes every Binding")
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
