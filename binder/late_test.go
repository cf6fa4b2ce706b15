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
	"k8s.io/apimachinery/pkg/types"

	"github.com/prebind/prebind/binder/framework"
)

// markOf is a mark for thePod on node-a.
func markOf(attempt string) framework.Mark {
	return framework.Mark{
		Pod:    types.NamespacedName{Namespace: thePod.Namespace, Name: thePod.Name},
		PodUID: thePod.UID, Node: "node-a", Attempt: attempt,
	}
}

// marker is a plugin with marks.
type marker struct {
	*writer
	marks []framework.Mark
	err   error
}

func (m *marker) Marks(context.Context) ([]framework.Mark, error) { return m.marks, m.err }

type livingReplicas map[string]bool

func (livingReplicas) Observe(ctx context.Context) { <-ctx.Done() }

func (l livingReplicas) Living(context.Context) (map[string]bool, error) {
	copied := map[string]bool{}
	for id := range l {
		copied[id] = true
	}
	return copied, nil
}

// TestOwnSweeper_SettlesEndedAttempts: the mark of an ended attempt remains if its rollback fails
// for too long. The replica sweeps such marks itself.
func TestOwnSweeper_SettlesEndedAttempts(t *testing.T) {
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
		s.OwnSweeper().Run(ctx)
		assert.Contains(t, calls.all(), "undone")
	})
}

// TestHold_OncePerCall: a call that waits several times is held once.
func TestHold_OncePerCall(t *testing.T) {
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

// TestFailure_IsNotReturnedLate: an old failure is not returned.
func TestFailure_IsNotReturnedLate(t *testing.T) {
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
		assert.NotEqual(t, framework.KindRefuse, kindOf(d.Err), "7 minutes old, a failure is kept for one: %v", d.Err)
	})
}

// TestFailure_WaitIsNotKept: a KindWait of an attempt is not kept for the next call.
func TestFailure_WaitIsNotKept(t *testing.T) {
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
		assert.Nil(t, d.Err, "the conflict of 9 s ago has no effect")
	})
}

// TestCall_PodDeletedDuringTheWait: no attempt starts for a pod that is deleted during the wait.
func TestCall_PodDeletedDuringTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, calls, release := beingRolledBack(t)
		waiting := later(quiet(t), s.Engine, theRequest())
		synctest.Wait()
		s.podIs(nil)
		close(release)
		assert.Equal(t, framework.KindWait, kindOf((<-waiting).Err), "the next call finds the pod deleted")
		pass(time.Minute)
		assert.Equal(t, []string{"a PreBind", "a PreBindRollBack"}, calls.all())
	})
}
