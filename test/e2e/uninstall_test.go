// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// No bind of a steady stream fails while Prebind is removed as documented. The tests of the release check that nothing remains.
func testUninstall(t *testing.T, w *world) {
	t.Helper()
	s := newStream(t, w, "1s")
	s.during(func() {
		// Wait for some binds of each kind before the removal.
		require.EventuallyWithT(t, func(c *assert.CollectT) { assert.Greater(c, s.answered(), atLeast/4) }, patience, again)
		require.NoError(t, w.prebind.Uninstall(t.Context()))
		assert.Empty(t, w.prebind.Replicas())
		last := s.answered()
		require.EventuallyWithT(t, func(c *assert.CollectT) { assert.Greater(c, s.answered(), last+atLeast/4) }, patience, again, "binds should continue")
	})
}
