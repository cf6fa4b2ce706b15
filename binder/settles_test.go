// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/recovery"
)

// TestBindSettles_Relations: rollback starts only when an allowed bind can no longer be committed.
func TestBindSettles_Relations(t *testing.T) {
	const (
		apiServer = 34 * time.Second
		etcd      = 5*time.Second + 2*time.Second
	)
	assert.Greater(t, framework.BindSettles, apiServer+etcd+5*time.Second, "there is a margin")
	assert.Greater(t, recovery.Grace, framework.BindSettles, "the sweep waits longer than a bind can take")
}

// TestLateCommit_IsNotRolledBack: etcd commits the bind at the last possible moment.
func TestLateCommit_IsNotRolledBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := &journal{}
		s := newScene(t, newWriter("lock", calls))
		d, _ := timed(t.Context(), s.Engine, theRequest())
		require.Nil(t, d.Err)
		pass(34*time.Second + 7*time.Second)
		s.bound("node-a", d.Annotations[attemptKeyOfTests])
		pass(time.Minute)
		assert.NotContains(t, calls.all(), "lock PreBindRollBack", "the pod is bound and uses the writes")
		assert.Contains(t, calls.all(), "lock PostBind")
	})
}
