// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package seeds

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestOf(t *testing.T) {
	t.Setenv(variable, "")
	assert.Equal(t, []uint64{0, 1, 2}, Of(t, 3), "the same at each run")
	t.Setenv(variable, "18446744073709551615")
	assert.Equal(t, []uint64{18446744073709551615}, Of(t, 3), "the one that has failed")
	t.Setenv(variable, "random")
	assert.Len(t, Of(t, 3), 3)
	one, other := Of(t, 3), Of(t, 3)
	assert.NotEqual(t, one, other, "others at each run")
}
