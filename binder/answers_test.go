// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/mutators"
	"github.com/prebind/prebind/test/gen"
)

// TestFailure_SurvivesTheBudget: the client gets the error of the plugin even if the rollback
// takes longer than the budget.
func TestFailure_SurvivesTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &plugin{
			name: "p",
			preBind: func(context.Context, *framework.BindContext) error {
				return framework.Refuse(claim, "no").Because(errScripted)
			},
			rollBack: func(context.Context, *framework.BindContext) error { pass(20 * time.Second); return nil },
		}
		e := newTestEngine(t, func(o *Options) {
			o.Settings.Plugins, o.Settings.PreBindTimeout, o.Settings.Hold = []framework.PreBinder{p}, 10*time.Second, time.Minute
		})
		d := e.Bind(t.Context(), theRequest())
		assert.ErrorIs(t, d.Err, errScripted)
	})
}

// TestPreBind_TypedNilIsSuccess: a plugin that returns a nil *framework.Error succeeds.
func TestPreBind_TypedNilIsSuccess(t *testing.T) {
	p := &plugin{name: "p", preBind: func(context.Context, *framework.BindContext) error {
		var err *framework.Error
		return err
	}}
	e := engineWith(t, p)
	d := e.Bind(t.Context(), theRequest())
	assert.Nil(t, d.Err)
}

// TestDenial_HasTheWarnings: the client gets warnings with every answer.
func TestDenial_HasTheWarnings(t *testing.T) {
	p := &checker{plugin: plugin{name: "p"}, preFlight: func(*framework.BindContext) (framework.Next, error) {
		return framework.Run, framework.Refuse(claim, "no")
	}}
	e := newTestEngine(t, func(o *Options) {
		o.Settings.Plugins = []framework.PreBinder{p}
		o.Settings.Mutators = chain(t, mutatorFunc(func(mutators.Input) (mutators.Output, error) {
			return mutators.Output{}, errors.New("no idea")
		}))
	})
	d := e.Bind(t.Context(), requestFor(gen.Binding(thePod, "node-a")))
	require.Equal(t, framework.KindRefuse, kindOf(d.Err))
	assert.Len(t, d.Warnings, 1)
}
