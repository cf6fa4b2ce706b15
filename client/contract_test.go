// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Load decodes a file in testdata. The tests of Prebind itself (test/golden) use the same files.
func Load(t *testing.T, name string, into any) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("testdata", name))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(content, into))
}

func TestContract(t *testing.T) {
	var want map[string]string
	Load(t, "contract.json", &want)
	assert.Equal(t, want, map[string]string{
		"WebhookName":            WebhookName,
		"DeviceAnnotationPrefix": DeviceAnnotationPrefix,
		"CausePlugin":            string(CausePlugin),
		"CauseObject":            string(CauseObject),
		"CauseField":             string(CauseField),
		"Waiting":                string(Waiting),
		"Refused":                string(Refused),
		"Stale":                  string(Stale),
		"Invalid":                string(Invalid),
		"Internal":               string(Internal),
	}, "the constants are those of Prebind")
}
