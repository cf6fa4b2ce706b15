// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/prebind/prebind/test/gen"
)

// The API server stores invalid metadata of a Binding, and then rejects every update of that pod, including updates of the kubelet.
// Prebind denies such a Binding. Here, pod and Binding together have too many annotations.
func TestMetadataThatNoPodSurvives(t *testing.T) {
	t.Parallel()
	b := newBench(t, shared, nil)
	kib := func(n int) string { return strings.Repeat("x", n<<10) }
	created := b.podWith(byHand, gen.Annotation("example.com/pods", kib(200)))
	err := b.bindByHand(b.binding("node-1", gen.Annotation("example.com/blob", kib(100))))
	require.True(t, apierrors.IsInvalid(err), "the Binding should be rejected as invalid: %v", err)
	for _, words := range []string{"invalid metadata after the merge", "metadata.annotations", "Too long", "262144"} {
		assert.ErrorContains(t, err, words)
	}
	assert.Equal(t, []string{"invalid"}, b.decisions())
	assert.Equal(t, created.ResourceVersion, b.assertNotBound().ResourceVersion, "the API server should not store the metadata")

	require.NoError(t, b.bindByHand(b.binding("node-1")), "without it")
	b.assertTopology(b.untilBound())
	assert.NoError(t, b.patchStatus("pod"))
}

// patchStatus reports the pod as ready, like its kubelet.
func (b *bench) patchStatus(name string) error {
	return b.patch(name, `{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}`)
}
