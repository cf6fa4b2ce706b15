// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package release_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/prebind/prebind/test/cluster"
)

// user runs the commands of docs/install.md in a directory with the files of a release.
type user struct {
	*world
	dir string
	// program is the path of the command-line tool.
	program string
	// files replaces the names of the manifests by those for clusters without cert-manager.
	files *strings.Replacer
	// todo contains the commands of the section "Install from a release" that were not run yet.
	todo []string
	// command applies manifests.
	command string
}

// newUser downloads the files of the release. The suffix is that of the manifests.
func newUser(w *world, version, suffix string) *user {
	w.t.Helper()
	u := &user{
		world: w, dir: w.t.TempDir(), program: programOf(w.t, version), todo: commandsOf(w.t, "## Install from a release"),
		files: strings.NewReplacer("first-install.yaml", "first-install"+suffix+".yaml", "install.yaml", "install"+suffix+".yaml"),
	}
	u.copyRelease(version)
	return u
}

// copyRelease replaces the files in the directory by those of the release.
func (u *user) copyRelease(version string) {
	u.t.Helper()
	entries, err := os.ReadDir(releaseOf(u.t, version))
	require.NoError(u.t, err)
	for _, e := range entries {
		require.NoError(u.t, copyFile(filepath.Join(releaseOf(u.t, version), e.Name()), filepath.Join(u.dir, e.Name())))
	}
}

// next returns the next command of the section. It must have this prefix.
func (u *user) next(prefix string) string {
	u.t.Helper()
	require.NotEmpty(u.t, u.todo, "docs/install.md should contain %s", prefix)
	command := u.todo[0]
	u.todo = u.todo[1:]
	require.True(u.t, strings.HasPrefix(command, prefix), "docs/install.md should contain %s instead of %s", prefix, command)
	return command
}

// skipDownload checks that the release contains the files of the next command.
func (u *user) skipDownload() {
	u.t.Helper()
	list := regexp.MustCompile(`/download/\$VERSION/\{(.*)\}"$`).FindStringSubmatch(u.next("curl"))
	require.NotNil(u.t, list)
	for name := range strings.SplitSeq(list[1], ",") {
		assert.FileExists(u.t, filepath.Join(u.dir, name))
	}
}

// run runs the command, and returns its output.
func (u *user) run(command string) string {
	u.t.Helper()
	out, err := u.shell(u.t.Context(), command)
	require.NoError(u.t, err)
	return out
}

func (u *user) shell(ctx context.Context, command string) (string, error) {
	kubectl := u.cluster.Kubectl(ctx)
	path := strings.Join([]string{filepath.Dir(kubectl.Path), filepath.Dir(u.program), os.Getenv("PATH")}, string(filepath.ListSeparator))
	cmd := exec.CommandContext(ctx, "bash", "-c", u.files.Replace(command))
	cmd.Dir, cmd.Env = u.dir, slices.Concat(kubectl.Env, []string{"PATH=" + path, "VERSION=" + current})
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", command, err, out)
	}
	return string(out), nil
}

// apply applies the manifests of the current command.
func (u *user) apply(ctx context.Context) error {
	_, err := u.shell(ctx, u.command)
	return err
}

// uninstall runs the first commands of the section "Uninstall", for manifests.
func (u *user) uninstall(ctx context.Context) error {
	for _, command := range commandsOf(u.t, "## Uninstall")[:2] {
		if _, err := u.shell(ctx, command); err != nil {
			return err
		}
	}
	return nil
}

// checkInstallation runs the commands of the section "Check the installation".
func (u *user) checkInstallation() {
	u.t.Helper()
	for _, command := range commandsOf(u.t, "## Check the installation") {
		if strings.Contains(command, "rollout status") {
			continue
		}
		out := u.run(strings.ReplaceAll(command, "WORKER", cluster.Nodes("node", 1)[0].Name))
		if strings.HasPrefix(command, "kubectl prebind explain") {
			assert.Contains(u.t, out, "Bind of pod default/try to node node-1: would be bound")
		}
	}
}

// commandsOf returns the commands of a section of docs/install.md up to its first subsection.
func commandsOf(t *testing.T, heading string) []string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root, "docs", "install.md"))
	require.NoError(t, err)
	_, section, found := strings.Cut(string(content), "\n"+heading+"\n")
	require.True(t, found, "docs/install.md should contain the section %s", heading)
	if next := regexp.MustCompile(`(?m)^##`).FindStringIndex(section); next != nil {
		section = section[:next[0]]
	}
	var commands []string
	for _, block := range regexp.MustCompile("(?ms)^```console\n(.*?)^```$").FindAllStringSubmatch(section, -1) {
		commands = append(commands, strings.Split(strings.TrimPrefix(strings.TrimSpace(block[1]), "$ "), "\n$ ")...)
	}
	require.NotEmpty(t, commands)
	return commands
}
