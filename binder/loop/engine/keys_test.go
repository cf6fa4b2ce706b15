// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestKeySet(t *testing.T) {
	var s keySet
	for range 2 {
		assert.Empty(t, s.check(map[string]string{"example.com/a": "1"}, nil))
		assert.Len(t, s.check(map[string]string{"no good": ""}, map[string]string{"a/b/c": ""}), 2, "an invalid key is never remembered")
	}
	for i := range 2 * maxKeys {
		assert.Empty(t, s.check(map[string]string{strconv.Itoa(i): ""}), "a valid key is valid also if the set is full")
	}
	n := 0
	s.keys.Range(func(any, any) bool { n++; return true })
	assert.Equal(t, maxKeys, n, "clients choose keys, so the set is bounded")
}
