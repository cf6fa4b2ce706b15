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

// TestStop: the attempts of a process that ends are left where they are, for the
// repeated call to go on with on another replica.
func TestStop(t *testing.T) {
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
		assert.Equal(t, 3*time.Second, time.Since(begin), "it waits for the attempts")
		require.ErrorIs(t, cause, errStopped)
		assert.Zero(t, p.rollBacks.Load(), "nothing is undone")
		assert.Equal(t, framework.KindWait, kindOf((<-held).Err), "a call that is held is told to call again")
		require.NoError(t, e.Stop(t.Context()))
	})
}

func TestStopWithoutAttempts(t *testing.T) {
	e := engineWith(t)
	require.NoError(t, e.Stop(t.Context()))
	e.Drain()
}
