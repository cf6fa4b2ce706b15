// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package workflows checks the workflows of the repository against the Makefile and the rules for them.
package workflows

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

var root = filepath.Join("..", "..")

// workflow is the part of a workflow that the rules are about.
type workflow struct {
	Permissions map[string]string `json:"permissions"`
	Concurrency struct {
		Group string `json:"group"`
	} `json:"concurrency"`
	Jobs map[string]struct {
		Timeout     int               `json:"timeout-minutes"`
		Permissions map[string]string `json:"permissions"`
		Steps       []struct {
			Uses string         `json:"uses"`
			Run  string         `json:"run"`
			With map[string]any `json:"with"`
		} `json:"steps"`
	} `json:"jobs"`
}

var (
	// uses is a line that uses an action. It contains the commit and the release, because a tag can move.
	uses   = regexp.MustCompile(`(?m)^\s*-?\s*uses:.*$`)
	pinned = regexp.MustCompile(`^\s*-?\s*uses: [\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$`)
	target = regexp.MustCompile(`(?m)^([a-z0-9-]+):`)
	// calls are the targets that a script builds.
	calls = regexp.MustCompile(`(?m)\bmake ([a-z][a-z0-9-]*)`)
)

func TestWorkflows(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	require.NoError(t, err)
	targets := map[string]bool{}
	for _, m := range target.FindAllStringSubmatch(string(makefile), -1) {
		targets[m[1]] = true
	}
	files, err := filepath.Glob(filepath.Join(root, ".github", "workflows", "*"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			content, err := os.ReadFile(file)
			require.NoError(t, err)
			for _, line := range uses.FindAllString(string(content), -1) {
				assert.Regexp(t, pinned, line, "a tag or branch of an action can move to other code")
			}
			assert.NotContains(t, string(content), "secrets.", "no job needs more than the token of the run")
			assert.NotContains(t, string(content), "pull_request_target", "it would run code of a pull request with write permissions")
			var w workflow
			require.NoError(t, yaml.Unmarshal(content, &w))
			assert.Equal(t, map[string]string{"contents": "read"}, w.Permissions, "a job that needs more requests it itself")
			assert.NotEmpty(t, w.Concurrency.Group, "runs of the same workflow would compete")
			require.NotEmpty(t, w.Jobs)
			for name, job := range w.Jobs {
				assert.Positive(t, job.Timeout, "%s: a job that hangs runs for six hours", name)
				for _, step := range job.Steps {
					for _, m := range calls.FindAllStringSubmatch(step.Run, -1) {
						assert.True(t, targets[m[1]], "%s: the Makefile has no target %q", name, m[1])
					}
					assert.NotContains(t, step.Run, "${{", "%s: an expression in a script can inject commands: use an environment variable", name)
					if strings.HasPrefix(step.Uses, "actions/checkout@") {
						assert.Equal(t, false, step.With["persist-credentials"], "%s: later steps could read the token from .git/config", name)
					}
				}
			}
		})
	}
}

// TestDependabot checks that the configuration contains every Go module.
func TestDependabot(t *testing.T) {
	content, err := os.ReadFile(filepath.Join(root, ".github", "dependabot.yml"))
	require.NoError(t, err)
	var config struct {
		Updates []struct {
			Ecosystem   string   `json:"package-ecosystem"`
			Directories []string `json:"directories"`
		} `json:"updates"`
	}
	require.NoError(t, yaml.Unmarshal(content, &config))
	require.Equal(t, "gomod", config.Updates[0].Ecosystem)
	var modules []string
	require.NoError(t, filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == "bin" || entry.Name() == ".git" || entry.Name() == "testdata"):
			return filepath.SkipDir
		case entry.Name() == "go.mod":
			dir, err := filepath.Rel(root, filepath.Dir(file))
			modules = append(modules, "/"+strings.TrimPrefix(filepath.ToSlash(dir), "."))
			return err
		}
		return nil
	}))
	assert.ElementsMatch(t, modules, config.Updates[0].Directories, "Dependabot does not update the other modules")
}
