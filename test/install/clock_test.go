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

// TestClockFiles checks that the overlay applies to the installed Go, and that a Go with another time.Now is an error.
func TestClockFiles(t *testing.T) {
	c, err := buildClocked(t.Context(), ".")
	require.NoError(t, err)
	require.Len(t, c.files, 2)
	for name, changed := range c.files {
		assert.True(t, strings.Contains(string(changed), "wrongWall("), "%s should call wrongWall", name) //nolint:testifylint // It would print all of package time.
		if strings.HasSuffix(name, "time.go") {
			_, err = changeNow(string(changed))
			assert.ErrorContains(t, err, "found 0 times")
		}
	}
}

// TestWriteOverlay checks that files with the same base name do not overwrite each other.
func TestWriteOverlay(t *testing.T) {
	path, err := writeOverlay(t.TempDir(), map[string][]byte{"/a/x.go": []byte("package a"), "/b/x.go": []byte("package b")})
	require.NoError(t, err)
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	var overlay struct{ Replace map[string]string }
	require.NoError(t, json.Unmarshal(content, &overlay))
	require.Len(t, overlay.Replace, 2)
	for from, want := range map[string]string{"/a/x.go": "package a", "/b/x.go": "package b"} {
		got, err := os.ReadFile(overlay.Replace[from])
		require.NoError(t, err)
		assert.Equal(t, want, string(got))
	}
}

// TestLinked checks that a Go in the module cache is linked once.
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
	assert.ErrorContains(t, err, "linking the Go installation")
}

// TestSetClock checks the error for a replica that does not read the clock file.
func TestSetClock(t *testing.T) {
	process, err := cluster.NewProcess(cluster.ProcessOptions{Name: "prebind-0", Path: "prebind", LogFile: "log"})
	require.NoError(t, err)
	r := &Replica{Process: process}
	assert.ErrorContains(t, r.SetClock(time.Hour), "cannot set the clock of prebind-0")
	r.clock = t.TempDir() + "/clock"
	require.NoError(t, r.SetClock(-time.Second))
	content, err := os.ReadFile(r.clock)
	require.NoError(t, err)
	assert.Equal(t, "-1000000000", string(content))
}
