// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"

	"github.com/prebind/prebind/test/gen"
)

// TestLargePodAndClaim checks that Prebind reads a pod and a claim that are too large for its cache from the API server, and binds
// them.
func TestLargePodAndClaim(t *testing.T) {
	t.Parallel()
	b := newBench(t, shared, nil)
	text := strings.Repeat("x", 100<<10)
	large := gen.Annotation("example.com/note", text)
	claim := gen.Claim("data", gen.InNamespace(b.ns), gen.OfClass(b.dynamic("1s")), large, gen.Annotation(volume.AnnBoundByController, text))
	_, err := b.client.CoreV1().PersistentVolumeClaims(b.ns).Create(t.Context(), claim, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = b.createPod("web", byHand, gen.UsesClaim("data"), large)
	require.NoError(t, err)
	require.NoError(t, b.bindByHand(gen.Binding(gen.Pod("web", gen.InNamespace(b.ns)), "node-1")))
	b.assertClaimBound("data", "node-1")
	pod, err := b.client.CoreV1().Pods(b.ns).Get(t.Context(), "web", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, "node-1", pod.Spec.NodeName)
	assert.NotEmpty(t, pod.Annotations["topology.prebind.dev/hostname"])
	claim, err = b.client.CoreV1().PersistentVolumeClaims(b.ns).Get(t.Context(), "data", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, text, claim.Annotations["example.com/note"], "a write should keep fields that the cache omits")
}
