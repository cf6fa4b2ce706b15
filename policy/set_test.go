// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/prebind/prebind/policy"
)

func named(t *testing.T, name, spec string) *policy.Compiled {
	t.Helper()
	p := parseSpec(t, spec)
	p.Name = name
	c, err := policy.Compile(p, policy.Options{})
	require.NoError(t, err)
	return c
}

func TestSet(t *testing.T) {
	first := named(t, "a", declared+validation("resources.csinode.spec.drivers[0].name == '' && namespaceObject != null"))
	second := named(t, "b", declared+validation("resources.csinode.spec.drivers[0].nodeID == '' && resources.agents.size() > 0 && claims.size() == 0"))
	given := []*policy.Compiled{second, first}
	s := policy.NewSet(given)
	assert.Equal(t, []*policy.Compiled{first, second}, s.All())
	assert.Equal(t, []*policy.Compiled{second, first}, given, "the argument does not change")
	n := s.Needs()
	assert.NotNil(t, n.Namespace)
	assert.NotNil(t, n.Claims)
	require.Len(t, n.Resources, 2)
	assert.Equal(t, "spec.drivers[*].name,spec.drivers[*].nodeID", n.Resources[0].Fields.String())
	assert.Equal(t, "agents", n.Resources[1].Name)
	assert.Equal(t, "spec.drivers[*].name", first.Needs().Resources[0].Fields.String(), "the policies do not change")
	assert.Equal(t, n.Resources[0].Key(), first.Needs().Resources[0].Key())

	assert.Empty(t, (*policy.Set)(nil).All())
	assert.Zero(t, policy.NewSet(nil).Needs())
}

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
