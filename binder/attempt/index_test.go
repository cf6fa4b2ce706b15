// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package attempt

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestIndex_RemoveForgetsEverything: the index neither leaks nor loses attempts that share a pod.
func TestIndex_RemoveForgetsEverything(t *testing.T) {
	x := newIndex()
	one := &Attempt{key: Key{"pod-1", "node-a"}, id: "here-1"}
	other := &Attempt{key: Key{"pod-1", "node-b"}, id: "here-2"}
	third := &Attempt{key: Key{"pod-2", "node-a"}, id: "here-3"}
	for _, a := range []*Attempt{one, other, third} {
		x.add(a)
	}
	assert.Equal(t, []*Attempt{one, other}, x.byPod["pod-1"])

	x.remove(one)
	assert.Equal(t, []*Attempt{other}, x.byPod["pod-1"], "the pod has another attempt")
	assert.Nil(t, x.byID["here-1"])
	assert.Nil(t, x.byKey[one.key])

	x.remove(other)
	x.remove(third)
	assert.Equal(t, newIndex(), x, "the index is empty")
}
