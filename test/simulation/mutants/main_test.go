// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// Every mutant applies to the current sources.
func TestMutants(t *testing.T) {
	t.Chdir("../../..")
	for _, m := range mutants {
		_, err := m.changed()
		assert.NoError(t, err, m.name)
	}
}
