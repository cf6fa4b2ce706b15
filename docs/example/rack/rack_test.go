// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package rack

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prebind/prebind/mutators"
)

func TestMutate(t *testing.T) {
	m, err := Registration().New(Registration().Arguments())
	require.NoError(t, err)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"example.com/rack": "7"}}}
	for _, tc := range []struct {
		node *corev1.Node
		want mutators.Output
	}{
		{node: node, want: mutators.Output{Annotations: map[string]string{"name": "7"}}},
		{node: &corev1.Node{}, want: mutators.Output{Missing: []string{"the node has no annotation example.com/rack"}}},
	} {
		got, err := m.Mutate(mutators.Input{Pod: &corev1.Pod{}, Node: tc.node, Binding: &corev1.Binding{}})
		require.NoError(t, err)
		assert.Equal(t, tc.want, got)
	}
}
