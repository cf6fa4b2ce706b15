// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/prebind/prebind/binder/framework"
)

// TestRun_LateReservesLast: no slot is held while another plugin waits, nor for a bind that is rejected.
func TestRun_LateReservesLast(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		late := plugin{name: "late", world: w, decide: func(*framework.BindContext) (framework.Verdict, error) {
			return framework.Verdict{Writes: []string{"takes a slot"}, Late: true}, nil
		}}
		time.AfterFunc(time.Second, func() { w.record("ready"); w.set("a") })
		require.Nil(t, w.run(t.Context(), w.bind(nodeName, late, w.writer("b"), w.waiter("a"))).Err)
		assert.Equal(t, []string{"write-b PreBind", "ready", "answer with attempt", "late Reserve"}, w.said())
		invalid := plugin{name: "invalid", world: w, decide: func(*framework.BindContext) (framework.Verdict, error) {
			return framework.Verdict{Annotations: map[string]string{"a/b/c": ""}}, nil
		}}
		require.NotNil(t, w.run(t.Context(), w.bind(nodeName, late, invalid)).Err)
		assert.NotContains(t, w.said()[4:], "late Reserve")
	})
}

// TestRun_FirstWait: nothing permanent is written for a node that may turn out to be the wrong one.
func TestRun_FirstWait(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		first := plugin{name: "first", world: w, decide: func(*framework.BindContext) (framework.Verdict, error) {
			if w.is("ready") {
				return framework.Verdict{}, nil
			}
			return framework.Verdict{Wait: framework.Wait{For: "the node", First: true}}, nil
		}}
		permanent, ok := w.writer("volume").(plugin)
		require.True(t, ok)
		decide := permanent.decide
		permanent.decide = func(bc *framework.BindContext) (framework.Verdict, error) {
			v, err := decide(bc)
			if v.Permanent = len(v.Writes) > 0; v.Permanent {
				v.Wait = framework.Wait{For: "the volume"}
			}
			return v, err
		}
		b := w.bind(nodeName, permanent, w.writer("task"), first)
		held := w.run(t.Context(), b)
		require.NotNil(t, held.Err)
		assert.Equal(t, "first: waiting for the node (8s), and 1 more; retry the Binding", held.Err.Error())
		w.record("ready")
		w.set("ready")
		require.Nil(t, w.run(t.Context(), b).Err)
		assert.Equal(t, []string{"write-task PreBind", "ready", "write-volume PreBind", "answer with attempt"}, w.said())
	})
}

// A first write that failed is repeated after its pause, not when something else wakes the call.
func TestRun_FailedFirstWrite(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		p, ok := w.writer("a").(plugin)
		require.True(t, ok)
		writes, calls := p.preBind, 0
		p.preBind = func(bc *framework.BindContext) error {
			if calls++; calls <= 2 { // The second call is at once, because the first one had no subscription.
				return framework.NotYet(framework.Object{Kind: "ConfigMap", Name: "node-a"}, "conflict")
			}
			return writes(bc)
		}
		began := time.Now()
		require.Nil(t, w.run(t.Context(), w.bind(nodeName, p)).Err)
		assert.LessOrEqual(t, time.Since(began), readAgain+time.Second)
		assert.Equal(t, 3, calls)
	})
}

// A plugin has to write again because of a change while it wrote, before the call had a subscription.
func TestRun_WritesAgain(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		p := plugin{
			name: "writer", world: w,
			decide: func(*framework.BindContext) (framework.Verdict, error) {
				if w.is("a") && w.is("b") {
					return framework.Verdict{}, nil
				}
				return framework.Verdict{Writes: []string{"writes what is missing"}}, nil
			},
			preBind: func(*framework.BindContext) error {
				if w.is("a") {
					w.set("b")
				}
				w.set("a")
				return nil
			},
		}
		began := time.Now()
		require.Nil(t, w.run(t.Context(), w.bind(nodeName, p)).Err)
		assert.LessOrEqual(t, time.Since(began), readAgain+time.Second)
	})
}
