// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package install

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/prebind/prebind/test/cluster"
)

// TestClockOverlay: the standard library of the Go that is at work can be changed, and
// one that has another time.Now is not built without a word.
func TestClockOverlay(t *testing.T) {
	c, err := buildClocked(t.Context(), ".", t.TempDir())
	require.NoError(t, err)
	content, err := os.ReadFile(c.overlay)
	require.NoError(t, err)
	var overlay struct{ Replace map[string]string }
	require.NoError(t, json.Unmarshal(content, &overlay))
	require.Len(t, overlay.Replace, 2)
	for from, to := range overlay.Replace {
		changed, err := os.ReadFile(to)
		require.NoError(t, err)
		assert.True(t, strings.Contains(string(changed), "wrongWall("), "%s should have it", from) //nolint:testifylint // It would print all of package time.
		if strings.HasSuffix(from, "time.go") {
			_, err = changeNow(string(changed))
			assert.ErrorContains(t, err, "are there 0 times")
		}
	}
}

// TestLinked: a Go in the module cache is at two places then, and is linked once.
func TestLinked(t *testing.T) {
	goroot, dir := filepath.Join(t.TempDir(), "go1"), t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(goroot, "src", "time"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(goroot, "VERSION"), []byte("go1"), 0o600))
	for range 2 {
		other, err := linked(goroot, dir)
		require.NoError(t, err)
		assert.Equal(t, filepath.Join(dir, "go1"), other)
		assert.DirExists(t, filepath.Join(other, "src", "time"))
		assert.FileExists(t, filepath.Join(other, "VERSION"))
	}
	_, err := linked(filepath.Join(goroot, "none"), dir)
	assert.ErrorContains(t, err, "whose standard library is to be changed")
}

// TestSetClock says when nobody reads it.
func TestSetClock(t *testing.T) {
	process, err := cluster.NewProcess(cluster.ProcessOptions{Name: "prebind-0", Path: "prebind", LogFile: "log"})
	require.NoError(t, err)
	r := &Replica{Process: process}
	assert.ErrorContains(t, r.SetClock(time.Hour), "the clock of prebind-0 cannot be set")
	r.clock = t.TempDir() + "/clock"
	require.NoError(t, r.SetClock(-time.Second))
	content, err := os.ReadFile(r.clock)
	require.NoError(t, err)
	assert.Equal(t, "-1000000000", string(content))
}
