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

	"github.com/prebind/prebind/binder/attempt"
	"github.com/prebind/prebind/binder/framework"
)

// TestStop_LeavesAttempts: attempts end without a rollback, because the repeated calls continue on
// another replica.
func TestStop_LeavesAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var cause error
		p := &plugin{name: "slow", preBind: func(ctx context.Context, _ *framework.BindContext) error {
			<-ctx.Done()
			cause = context.Cause(ctx)
			pass(3 * time.Second)
			return cause
		}}
		e := engineWith(t, p)
		held := later(t.Context(), e, theRequest())
		synctest.Wait()
		begin := time.Now()
		require.NoError(t, e.Stop(t.Context()))
		assert.Equal(t, 3*time.Second, time.Since(begin), "Stop waits for the attempts")
		require.ErrorIs(t, cause, attempt.ErrStopped)
		assert.Zero(t, p.rollBacks.Load(), "no attempt is rolled back")
		assert.Equal(t, framework.KindWait, kindOf((<-held).Err), "a held call must be repeated")
		require.NoError(t, e.Stop(t.Context()))
	})
}

func TestStop_WithoutAttempts(t *testing.T) {
	e := engineWith(t)
	require.NoError(t, e.Stop(t.Context()))
	e.Drain()
}
