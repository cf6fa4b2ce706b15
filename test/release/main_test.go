// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package release_test builds a release as a maintainer does, and installs, upgrades and removes Prebind with its files.
package release_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/prebind/prebind/test/install"
)

const (
	root = "../.."
	// current and next are the versions of the tested releases.
	current = "v99.0.0"
	next    = "v99.1.0"
)

// scratch is the directory for checkouts and releases of this package.
var scratch string

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	var err error
	if scratch, err = os.MkdirTemp("", "prebind-test-release-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(scratch) //nolint:errcheck // Only a directory of this process.
	return m.Run()
}

// checkout is a copy of this checkout at the tag of the current release, for all tests.
var checkout = sync.OnceValues(func() (string, error) {
	dir := filepath.Join(scratch, "checkout")
	return dir, errors.Join(copyCheckout(context.Background(), dir), git(context.Background(), dir, "tag", current))
})

// ownCheckout returns a clone of checkout for a test that changes it.
func ownCheckout(t *testing.T) string {
	t.Helper()
	from, err := checkout()
	require.NoError(t, err)
	dir := filepath.Join(t.TempDir(), "clone")
	require.NoError(t, git(t.Context(), from, "clone", "--quiet", "--shared", ".", dir))
	return dir
}

// releases builds each release once for all tests.
var releases = map[string]func() (string, error){current: builder(current), next: builder(next)}

func builder(version string) func() (string, error) {
	return sync.OnceValues(func() (string, error) {
		from, err := checkout()
		if err != nil {
			return "", err
		}
		dir := filepath.Join(scratch, version)
		return dir, makeRelease(context.Background(), from, version, dir)
	})
}

// releaseOf returns the directory of a release.
func releaseOf(t *testing.T, version string) string {
	t.Helper()
	dir, err := releases[version]()
	require.NoError(t, err)
	return dir
}

// copyCheckout writes the files of this checkout, including changes that are not committed, to a repository with one commit. The
// changelog has a section for each version.
func copyCheckout(ctx context.Context, dir string) error {
	list := exec.CommandContext(ctx, "git", "ls-files", "--cached", "--others", "--exclude-standard", "-z")
	list.Dir = root
	names, err := list.Output()
	if err != nil {
		return fmt.Errorf("listing the files of the checkout: %w", err)
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names), "\x00"), "\x00") {
		if err := copyFile(filepath.Join(root, name), filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	path := filepath.Join(dir, "CHANGELOG.md")
	changelog, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	section := "## %s - 2026-01-01\n\n### Added\n\n- A change\n  of [`--hold`](docs/flags.md#hold).\n- It's another.\n\n"
	added := fmt.Sprintf(section+section, next[1:], current[1:])
	if err := os.WriteFile(path, bytes.Replace(changelog, []byte("## Unreleased"), []byte(added+"## Unreleased"), 1), 0o600); err != nil {
		return err
	}
	for _, args := range [][]string{{"init", "--quiet"}, {"add", "."}, {"commit", "--quiet", "--message=Release"}} {
		if err := git(ctx, dir, args...); err != nil {
			return err
		}
	}
	return nil
}

// git runs git in a checkout. Equal commits have equal hashes.
func git(ctx context.Context, dir string, args ...string) error {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=test", "GIT_AUTHOR_EMAIL=test@example.com", "GIT_AUTHOR_DATE=2026-01-01T00:00:00Z",
		"GIT_COMMITTER_NAME=test", "GIT_COMMITTER_EMAIL=test@example.com", "GIT_COMMITTER_DATE=2026-01-01T00:00:00Z")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("git %v: %w\n%s", args, err, out)
	}
	return nil
}

func copyFile(from, to string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, content, info.Mode().Perm())
}

// platformsOf returns the platforms of a release. Only the current one has several.
func platformsOf(version string) string {
	if version == current {
		return "linux/amd64 linux/arm64"
	}
	return "linux/" + runtime.GOARCH
}

// makeRelease runs make release. The variables are added to the environment.
func makeRelease(ctx context.Context, checkout, version, out string, env ...string) error {
	return runMake(ctx, checkout, "release", version, out, env...)
}

// runMake builds a target of a release in the directory out.
func runMake(ctx context.Context, checkout, target, version, out string, env ...string) error {
	// The shell sets the mask for new files.
	cmd := exec.CommandContext(ctx, "sh", "-c", "umask ${MASK:-022} && exec make --no-print-directory \"$@\"", "make",
		target, "VERSION="+version, "PLATFORMS="+platformsOf(version), "RELEASE="+out, "STAGE="+out+".stage")
	cmd.Dir = checkout
	for _, e := range os.Environ() {
		// An outer make must not change the result.
		if !strings.HasPrefix(e, "MAKE") && !strings.HasPrefix(e, "MFLAGS=") {
			cmd.Env = append(cmd.Env, e)
		}
	}
	cmd.Env = append(cmd.Env, env...)
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("make %s VERSION=%s: %w\n%s", target, version, err, output)
	}
	return nil
}

// entry is a file of an archive.
type entry struct {
	mode    fs.FileMode
	content []byte
}

// unpack returns the files of a tar archive by their name. It decompresses the content if it is gzip.
func unpack(t *testing.T, content []byte) map[string]entry {
	t.Helper()
	var from io.Reader = bytes.NewReader(content)
	if bytes.HasPrefix(content, []byte{0x1f, 0x8b}) {
		var err error
		from, err = gzip.NewReader(from)
		require.NoError(t, err)
	}
	files := map[string]entry{}
	archive := tar.NewReader(from)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		require.NoError(t, err)
		assert.Zero(t, header.Uid+header.Gid, "%s belongs to root", header.Name)
		if header.Typeflag == tar.TypeDir {
			continue
		}
		content, err := io.ReadAll(archive)
		require.NoError(t, err)
		files[header.Name] = entry{header.FileInfo().Mode(), content}
	}
}

// tool returns a command that runs a tool of tools.mod.
func tool(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	dir, err := filepath.Abs(root)
	require.NoError(t, err)
	cmd, err := install.Tool(t.Context(), dir, name, args...)
	require.NoError(t, err)
	return cmd
}

// archiveOf returns the files in the archive of a platform, such as linux-amd64.
func archiveOf(t *testing.T, version, platform string) map[string]entry {
	t.Helper()
	return unpack(t, read(t, filepath.Join(releaseOf(t, version), fmt.Sprintf("prebind-%s-%s.tar.gz", version, platform))))
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	return content
}

// programOf unpacks the programs of a release for this machine, and returns the path of prebind.
func programOf(t *testing.T, version string) string {
	t.Helper()
	dir := t.TempDir()
	for name, file := range archiveOf(t, version, "linux-"+runtime.GOARCH) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), file.content, file.mode))
	}
	return filepath.Join(dir, "prebind")
}
