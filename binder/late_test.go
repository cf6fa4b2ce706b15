// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/prebind/prebind/binder/framework"
)

// Roll-back that fails for longer than the persistence, or PostBind that fails: the mark of a
// living replica whose attempt is over is nobody's.
func TestOwnMarkOfAnEndedAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := &journal{}
		m := &marker{writer: newWriter("lock", calls)}
		var outage atomic.Bool
		outage.Store(true)
		m.rollBack = func(context.Context, *framework.BindContext) error {
			if outage.Load() {
				return errScripted
			}
			calls.add("undone")
			m.marks = nil
			return nil
		}
		s := newScene(t, m)
		d, _ := timed(t.Context(), s.Engine, theRequest())
		require.Nil(t, d.Err)
		m.marks = []framework.Mark{markOf(d.Annotations[attemptKeyOfTests])}
		s.podIs(nil)
		pass(10 * time.Minute)
		outage.Store(false)
		ctx, cancel := context.WithTimeout(quiet(t), time.Hour)
		defer cancel()
		NewOwnSweeper(s.Engine).Run(ctx)
		assert.Contains(t, calls.all(), "undone")
	})
}

// Bind takes several holds.
func TestOneHoldPerCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		p := &plugin{name: "p"}
		p.preBind = func(ctx context.Context, _ *framework.BindContext) error {
			if n++; n == 1 {
				return nil
			}
			<-ctx.Done()
			return context.Cause(ctx)
		}
		p.rollBack = func(context.Context, *framework.BindContext) error { pass(4 * time.Second); return nil }
		s := newScene(t, p)
		timed(t.Context(), s.Engine, theRequest())
		pass(framework.BindSettles + 10*time.Millisecond)
		d, took := timed(t.Context(), s.Engine, theRequest())
		require.NotNil(t, d.Err)
		assert.LessOrEqual(t, took, testHold, "at most --hold")
	})
}

// A failure is told long after.
func TestOldFailureIsNotTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &plugin{name: "p"}
		n := 0
		p.preBind = func(context.Context, *framework.BindContext) error {
			if n++; n > 1 {
				return nil
			}
			pass(10 * time.Second)
			return framework.Refuse(claim, "is lost")
		}
		p.rollBack = func(context.Context, *framework.BindContext) error { return errScripted }
		s := newScene(t, p)
		timed(t.Context(), s.Engine, theRequest())
		pass(7 * time.Minute)
		d, _ := timed(t.Context(), s.Engine, theRequest())
		assert.NotEqual(t, framework.KindRefuse, kindOf(d.Err), "7 minutes old, keepFailure is one: %v", d.Err)
	})
}

// A wait that nobody was told costs a repeat.
func TestWaitIsNotKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		p := &plugin{name: "p", preBind: func(context.Context, *framework.BindContext) error {
			if n++; n > 1 {
				return nil
			}
			pass(6 * time.Second)
			return framework.Wait(claim, "somebody else was faster")
		}}
		e := engineWith(t, p)
		timed(t.Context(), e, theRequest())
		pass(10 * time.Second)
		d, _ := timed(t.Context(), e, theRequest())
		assert.Nil(t, d.Err, "the conflict of 9 s ago is no reason to wait")
	})
}

// A pod that goes while a call waits for it is not prepared for once more.
func TestPodGoesWhileACallWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, calls, release := beingRolledBack(t)
		waiting := later(quiet(t), s.Engine, theRequest())
		synctest.Wait()
		s.podIs(nil)
		close(release)
		assert.Equal(t, framework.KindWait, kindOf((<-waiting).Err), "the next call hears that the pod is gone")
		pass(time.Minute)
		assert.Equal(t, []string{"a PreBind", "a PreBindRollBack"}, calls.all())
	})
}
