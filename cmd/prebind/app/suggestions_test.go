// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestSuggestionIsOneLine(t *testing.T) {
	_, err := run(t, "serv")
	assert.NotContains(t, err.Error(), "\n")
}
