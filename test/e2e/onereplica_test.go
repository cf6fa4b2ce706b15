// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import "testing"

// Tests of one replica, and of its exit, have their own installation.
func TestOneReplica(t *testing.T) {
	t.Parallel()
	w := ownWorld(t, 1, "--hold=4s") // Short calls cause more repeats.
	t.Run("undisturbed", func(t *testing.T) {
		testAttemptAnnotation(t, w)
		testNodeDrained(t, w)
		testDeviceRecordIsLostWhileBinding(t, w)
	})
	t.Run("refused afterwards", func(t *testing.T) {
		testRefusedAfterwards(t, w)
	})
	t.Run("killed", func(t *testing.T) {
		testKills(t, w)
	})
}
