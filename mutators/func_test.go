// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package mutators

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/prebind/prebind/test/gen"
)

func TestFunc(t *testing.T) {
	m := Func("rack", func(pod *corev1.Pod, node *corev1.Node) map[string]string {
		return map[string]string{"place": pod.Name + "@" + node.Name}
	})
	c, err := NewChain(Options{Domain: "prebind.dev", Mutators: []Mutator{m}})
	require.NoError(t, err)
	pod := gen.Pod("web")
	result := c.Mutate(Input{Pod: pod, Node: gen.Node("node-a"), Binding: gen.Binding(pod, "node-a")})
	assert.Equal(t, map[string]string{"rack.prebind.dev/place": "web@node-a"}, result.Annotations)
}
