// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package work

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/prebind/prebind/binder/framework"
)

// A call that writes during a rollback learns at once that it has to wait, so that it notices the end of the rollback.
func TestWrite_DuringRollback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const lasts = 10 * time.Second
		w := newWriter(&journal{})
		w.rollBack = func(context.Context, framework.Mark) error { pass(lasts); return nil }
		s, e := newFixture(w, thePod).written(t, w)
		synctest.Wait()
		began := time.Now()
		assert.ErrorIs(t, s.Write(t.Context(), e, w, func() error { return nil }), Closing)
		assert.Zero(t, time.Since(began))
		pass(lasts)
		synctest.Wait()
		found, _ := s.Join(Key{Pod: thePod.UID, Node: "node-a"}, nil, "")
		assert.Nil(t, found, "the rollback is over")
	})
}

// A rollback that succeeds at a later try is recorded once, as done: each failure would raise an alert.
func TestRollBack_IsRecordedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries, recorded := 0, rolledBack{}
		w := newWriter(&journal{})
		w.rollBack = func(context.Context, framework.Mark) error {
			if tries++; tries < 3 {
				return errors.New("the API server does not answer")
			}
			return nil
		}
		f := newFixture(w, thePod)
		f.o.Recorder = &recorded
		f.written(t, w)
		pass(time.Minute)
		synctest.Wait()
		assert.Equal(t, 3, tries)
		assert.Equal(t, []error{nil}, recorded.results)
	})
}

// The rollback of a plugin that fails again and again does not delay those of others.
func TestRollBack_FailureDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &journal{}
		first, failing := newWriter(j), newWriter(j)
		var rolledBackAfter time.Duration
		began := time.Now()
		first.rollBack = func(context.Context, framework.Mark) error { rolledBackAfter = time.Since(began); return nil }
		failing.rollBack = func(context.Context, framework.Mark) error { return errors.New("another webhook rejects the patch") }
		newFixture(first, thePod).written(t, first, another{failing})
		pass(10 * time.Minute)
		synctest.Wait()
		assert.Less(t, rolledBackAfter, 10*time.Second)
	})
}

// another is a writer with another name.
type another struct{ *recordingWriter }

// Name implements framework.Plugin.
func (another) Name() string { return "another" }

// rolledBack is a Recorder that keeps the results of rollbacks.
type rolledBack struct {
	unrecorded
	results []error
}

func (r *rolledBack) RolledBack(_ string, err error) { r.results = append(r.results, err) }
