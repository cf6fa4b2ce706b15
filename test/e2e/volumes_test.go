// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prebind/prebind/test/gen"
)

// A scheduler without support for volumes does not handle these cases, so the test binds all pods by hand.

// A controller creates the claim of a generic ephemeral volume after the pod. The bind of a faster scheduler waits.
func TestEphemeralVolume(t *testing.T) {
	t.Parallel()
	b := newBench(t, shared, nil)
	b.podWith(byHand, gen.EphemeralVolume("scratch", gen.OfClass(b.dynamic("1s"))))
	require.NoError(t, b.bindByHand(b.binding("node-3")))
	b.assertTopology(b.untilBound())
	b.assertClaimBound("pod-scratch", "node-3")
}
