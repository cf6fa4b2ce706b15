// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/xml"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestRecord checks what is shown, and that a command that fails ends the recording.
func TestRecord(t *testing.T) {
	t.Parallel()
	lines, err := record(t.Context(), strings.NewReader("# intro\n\n# why\necho '<a>'; exit 2\n echo hidden\n\nprintf 'b\\nc\\n'\n"), io.Discard)
	require.NoError(t, err)
	var shown []string
	last := 0.0
	for _, l := range lines {
		shown = append(shown, l.text)
		assert.Greater(t, l.after, last)
		last = l.after
	}
	assert.Equal(t, []string{"# why", "$ echo '<a>'; exit 2", "<a>", "", "$ printf 'b\\nc\\n'", "b", "c"}, shown)
	_, err = record(t.Context(), strings.NewReader("\necho no; exit 1\n"), io.Discard)
	require.ErrorContains(t, err, "exit status 1\nno")

	var out strings.Builder
	require.NoError(t, render(&out, append(lines, line{text: strings.Repeat("x", columns+1)})))
	assert.Contains(t, out.String(), "&lt;a&gt;")
	assert.Contains(t, out.String(), strings.Repeat("x", columns-1)+"…<")
	require.NoError(t, xml.Unmarshal([]byte(out.String()), new(struct{})))
}

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
