// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/xml"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestRecordingIsCurrent checks that the committed recording has the commands and comments of the script.
func TestRecordingIsCurrent(t *testing.T) {
	t.Parallel()
	script, err := os.ReadFile("demo.sh")
	require.NoError(t, err)
	image, err := os.ReadFile("../../docs/images/demo.svg")
	require.NoError(t, err)
	var recorded struct {
		Lines []string `xml:"text"`
	}
	require.NoError(t, xml.Unmarshal(image, &recorded))
	_, session, _ := strings.Cut(string(script), "\n\n")
	for command := range strings.Lines(session) {
		if command = strings.TrimSuffix(command, "\n"); command != "" && !strings.HasPrefix(command, " ") {
			if !strings.HasPrefix(command, "#") {
				command = "$ " + command
			}
			assert.Contains(t, recorded.Lines, command, "run make demo-recording")
		}
	}
}
