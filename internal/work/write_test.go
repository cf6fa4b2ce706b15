// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package work

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/notify"
)

// A call that writes during a rollback learns at once that it has to wait, so that it notices the end of the rollback.
func TestWrite_DuringRollback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const lasts = 10 * time.Second
		w := newWriter(&journal{})
		w.rollBack = func(context.Context, framework.Mark) error { pass(lasts); return nil }
		f := newFixture(w, thePod)
		f.o.Changes, f.o.Term = notify.NewHub(), func() (int64, bool) { return 1, true }
		s, key := NewSet(f.o), Key{Pod: thePod.UID, Node: "node-a"}
		e, err := s.Open(quiet(t), key, markOf("").Pod, "here-1")
		require.NoError(t, err)
		require.NoError(t, s.Write(t.Context(), e, w, func() error { return nil }))
		s.Leave(e, true, 0)
		synctest.Wait()
		began := time.Now()
		assert.ErrorIs(t, s.Write(t.Context(), e, w, func() error { return nil }), Closing)
		assert.Zero(t, time.Since(began))
		pass(lasts)
		synctest.Wait()
		found, _ := s.Join(key, nil, "")
		assert.Nil(t, found, "the rollback is over")
	})
}
