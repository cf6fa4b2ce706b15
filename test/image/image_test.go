// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package image_test checks the Dockerfile without a build: BuildKit's parser and linter read it, and its files are sufficient to
// compile the program.
package image_test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/linter"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const root = "../.."

// parse returns the stages, the arguments before the first of them, and what the
// linter says.
func parse(t *testing.T) (stages []instructions.Stage, args []instructions.ArgCommand, warnings []string) {
	t.Helper()
	file, err := os.Open(filepath.Join(root, "Dockerfile"))
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, file.Close()) })
	result, err := parser.Parse(file)
	require.NoError(t, err)
	for _, w := range result.Warnings {
		warnings = append(warnings, w.Short)
	}
	stages, args, err = instructions.Parse(result.AST, linter.New(&linter.Config{
		Warn: func(rule, _, _, message string, _ []parser.Range) { warnings = append(warnings, rule+": "+message) },
	}))
	require.NoError(t, err)
	return stages, args, warnings
}

// all returns the commands of type T.
func all[T instructions.Command](stage instructions.Stage) []T {
	var found []T
	for _, c := range stage.Commands {
		if typed, ok := c.(T); ok {
			found = append(found, typed)
		}
	}
	return found
}

func TestLint(t *testing.T) {
	_, _, warnings := parse(t)
	assert.Empty(t, warnings)
}

func TestStages(t *testing.T) {
	stages, args, _ := parse(t)
	require.Len(t, stages, 2)
	build, final := stages[0], stages[1]

	defaults := map[string]string{}
	for _, a := range args {
		for _, kv := range a.Args {
			defaults[kv.Key] = kv.ValueString()
		}
	}
	assert.Equal(t, "${GO_IMAGE}", build.BaseName, "a mirror can stand for it")
	assert.Equal(t, "${BASE_IMAGE}", final.BaseName, "a mirror can stand for it")
	for _, name := range []string{"GO_IMAGE", "BASE_IMAGE"} {
		assert.NotEmpty(t, defaults[name], "it must build without arguments")
		assert.NotContains(t, defaults[name], ":latest", "tomorrow it is another one")
	}
	assert.Equal(t, "$BUILDPLATFORM", build.Platform, "an emulated compiler is slow")
	assert.Contains(t, defaults["GO_IMAGE"], goVersion(t), "it must be able to compile the module")

	run := all[*instructions.RunCommand](build)
	require.Len(t, run, 1)
	compile := strings.Join(run[0].CmdLine, " ")
	for _, want := range []string{"CGO_ENABLED=0", "GOOS=${TARGETOS}", "GOARCH=${TARGETARCH}", "-trimpath", "cli.version=${VERSION}", "./cmd/prebind"} {
		assert.Contains(t, compile, want, "the binary is static, for the target, and knows its version")
	}

	assert.Empty(t, all[*instructions.RunCommand](final), "there is no shell")
	assert.Empty(t, all[*instructions.AddCommand](final), "nothing comes from elsewhere")
	copies := all[*instructions.CopyCommand](final)
	require.Len(t, copies, 1, "the program and nothing else")
	assert.Equal(t, build.Name, copies[0].From)
	users := all[*instructions.UserCommand](final)
	require.Len(t, users, 1)
	assert.Regexp(t, `^[1-9]\d*:[1-9]\d*$`, users[0].User, "the kubelet checks runAsNonRoot by the number")
	entry := all[*instructions.EntrypointCommand](final)
	require.Len(t, entry, 1)
	assert.False(t, entry[0].PrependShell, "there is no shell")
	assert.Equal(t, copies[0].DestPath, strings.Join(entry[0].CmdLine, " "))
}

// goVersion is that of go.mod, without the patch.
func goVersion(t *testing.T) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root, "go.mod"))
	require.NoError(t, err)
	found := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindSubmatch(content)
	require.NotNil(t, found)
	return string(found[1])
}

// What .dockerignore lets through is all that the program is compiled from: code,
// and files that are embedded.
func TestContext(t *testing.T) {
	ignored, err := os.Open(filepath.Join(root, ".dockerignore"))
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, ignored.Close()) })
	patterns, err := ignorefile.ReadAll(ignored)
	require.NoError(t, err)
	matcher, err := patternmatcher.New(patterns)
	require.NoError(t, err)

	dir := t.TempDir()
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if name == ".git" || name == "bin" {
				return fs.SkipDir
			}
			return nil
		}
		if out, err := matcher.MatchesOrParentMatches(filepath.ToSlash(name)); err != nil || out {
			return err
		}
		assert.NotContains(t, name, "_test.go")
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		to := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
			return err
		}
		return os.WriteFile(to, content, 0o600)
	})
	require.NoError(t, err)
	// It reads every file and finds every import and every embedded file; to compile them is the Makefile's.
	for _, arch := range []string{"amd64", "arm64"} {
		cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "", "./cmd/prebind")
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch, "GOFLAGS=", "GOWORK=off")
		out, err := cmd.CombinedOutput()
		assert.NoError(t, err, "%s", out)
	}
	for _, left := range []string{"test", "charts", "docs", ".git", "tools.mod"} {
		assert.NoFileExists(t, filepath.Join(dir, left), "it would only spoil the cache")
		assert.NoDirExists(t, filepath.Join(dir, left), "it would only spoil the cache")
	}
}
