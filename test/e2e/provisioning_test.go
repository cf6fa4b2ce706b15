// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prebind/prebind/test/gen"
)

// If provisioning takes longer than a call, the client of the scheduler repeats the call until the volume exists, and the scheduler
// gets no error.
func TestSlowProvisioning(t *testing.T) {
	t.Parallel()
	for name, by := range binders {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, shared, nil)
			b.claim("data", b.dynamic("40s"))
			pod := b.bind(by.scheduler, "node-3", "data")
			b.assertClaimBound("data", pod.Spec.NodeName)
			if by.volumesByPrebind {
				said := b.decisions()
				assert.Greater(t, len(said), 1, "no call should be held for 40 s")
				assert.Equal(t, "waiting", said[0])
				assert.LessOrEqual(t, len(said), 11, "client-go should repeat a call at most ten times")
			}
		})
	}
}

// The wait for provisioning on a node ends when the node is deleted.
func TestNodeDeletedWhileWaiting(t *testing.T) {
	t.Parallel()
	const other = "node-5"
	for name, by := range binders {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, shared, nil)
			doomed, toleration := b.ownNode("doomed")
			b.claim("data", b.dynamic("12s"))
			b.podWith(by.scheduler, gen.UsesClaim("data"), toleration, b.steered())
			var first <-chan error
			if by.scheduler == byHand {
				first = b.beginBind(doomed)
			}
			require.Equal(t, doomed, b.untilSelected())
			require.NoError(t, b.client.CoreV1().Nodes().Delete(t.Context(), doomed, metav1.DeleteOptions{}))
			switch {
			case by.scheduler == byHand:
				err := b.end(first)
				assert.True(t, apierrors.IsForbidden(err), "the request should be refused: %v", err)
				assert.ErrorContains(t, err, "Node "+doomed)
				b.assertUnbound("data", "the bind should end because of the node, not when the provisioner sees it")
				b.allow(other)
				// The claim keeps its selected node until the provisioner has observed it.
				errs := b.insist(t.Context(), b.binding(other))
				for _, err := range errs[:len(errs)-1] {
					assert.ErrorContains(t, err, "bind the pod to "+doomed)
				}
			case by.volumesByPrebind:
				b.untilEvent("FailedScheduling", "Node "+doomed)
				b.allow(other)
			default:
				b.untilEvent("FailedScheduling")
				b.allow(other)
			}
			pod := b.untilBound()
			assert.Equal(t, other, pod.Spec.NodeName)
			b.assertTopology(pod)
			b.assertClaimBound("data", other)
		})
	}
}
