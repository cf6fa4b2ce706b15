// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
)

// A client with a short timeout tries another node while the volume is being provisioned on the first one. The denial names the first
// node, and a Binding to that node succeeds. kube-scheduler has no such timeout, and its next decision considers the selected node of
// the claim.
func TestSchedulerGivesUpAndMovesOn(t *testing.T) {
	t.Parallel()
	b := newBench(t, shared, nil)
	b.claim("data", b.dynamic("30s"))
	b.pod(byHand, "data")

	ctx, giveUp := context.WithCancel(t.Context())
	defer giveUp()
	first := make(chan error, 1)
	go func() {
		post := b.client.CoreV1().RESTClient().Post().Namespace(b.ns).Resource("pods").Name("pod").SubResource("binding")
		first <- post.Body(b.binding("node-1")).MaxRetries(0).Do(ctx).Error()
	}()
	require.Equal(t, "node-1", b.untilSelected())
	giveUp()
	require.Error(t, b.end(first), "the pod should not be bound before its volume exists")

	err := b.bindByHand(b.binding("node-2"))
	assert.True(t, apierrors.IsForbidden(err), "the request should be rejected: %v", err)
	for _, words := range []string{b.ns + "/data", "being provisioned on node node-1", "bind the pod to node-1"} {
		assert.ErrorContains(t, err, words)
	}

	require.NoError(t, b.bindByHand(b.binding("node-1")))
	pod := b.untilBound()
	assert.Equal(t, "node-1", pod.Spec.NodeName)
	b.assertTopology(pod)
	b.assertClaimBound("data", "node-1")
}

// A pod can request another budget.
func TestTimeoutAnnotation(t *testing.T) {
	t.Parallel()
	b := newBench(t, shared, nil)
	b.claim("data", b.dynamic("10m"))
	b.podWith(cluster.NoPreBindScheduler, gen.Annotation("binder.prebind.dev/timeout", "2s"), gen.UsesClaim("data"))
	says := []string{"timed out after 2s", "/data", "waiting for provisioning"}
	b.untilEvent(append(says, "FailedScheduling")...)
	b.untilEvent(append(says, "BindRefused")...)
}
