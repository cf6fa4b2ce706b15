// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package assembly

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prebind/prebind/test/gen"
)

func TestTrimNode(t *testing.T) {
	node := gen.Node("node-a", gen.Zone("z1"), gen.Ready(10))
	node.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubelet"}}
	node.Status.Images = []corev1.ContainerImage{{Names: []string{"large"}}}
	got, err := trimNode(node)
	require.NoError(t, err)
	assert.Equal(t, gen.Node("node-a", gen.Zone("z1"), gen.Ready(10)), got)
	got, err = trimNode("something else")
	require.NoError(t, err)
	assert.Equal(t, "something else", got)
}
