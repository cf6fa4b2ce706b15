// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestResource_Key(t *testing.T) {
	key := func(resource string) string {
		c := compile(t, "resources: ["+resource+"]\n"+validation("dyn(resources.x) != null"))
		return c.Needs().Resources[0].Key()
	}
	seen := map[string]bool{}
	for _, r := range []string{
		"{name: x, apiVersion: v1, kind: Pod, onNode: true}",
		"{name: x, apiVersion: v1, kind: Pod, namespace: n, onNode: true}",
		"{name: x, apiVersion: v1, kind: Pod, namespace: n, onNode: true, labelSelector: {matchLabels: {a: b}}}",
		"{name: x, apiVersion: v1, kind: Pod, namespace: n, labelSelector: {matchLabels: {a: b}}}",
		"{name: x, apiVersion: v1, kind: Pod, namespace: n, nameExpression: \"'a'\"}",
		"{name: x, apiVersion: v2, kind: Pod, namespace: n, nameExpression: \"'a'\"}",
		"{name: x, apiVersion: v2, kind: Node, namespace: n, nameExpression: \"'a'\"}",
	} {
		assert.False(t, seen[key(r)], r)
		seen[key(r)] = true
	}
	assert.NotEqual(t, key("{name: x, apiVersion: v1, kind: Pod, nameExpression: \"'a'\"}"), key("{name: x, apiVersion: v1, kind: Pod, nameExpression: \"'b'\"}"))
	assert.Equal(t, key("{name: x, apiVersion: v1, kind: Pod, nameExpression: pod.metadata.name}"), key("{name: x, apiVersion: v1, kind: Pod, nameExpression: node.metadata.name}"))
}
