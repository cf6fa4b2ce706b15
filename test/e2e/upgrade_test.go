// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/prebind/prebind/test/install"
)

const (
	// upgradeFromEnv names a tag or commit instead of the last release.
	upgradeFromEnv = "PREBIND_UPGRADE_FROM"
	// upgradeFromFile contains the commit to use before the first release.
	upgradeFromFile = "testdata/upgrade-from"
)

// upgrade is an installation whose replicas change their version.
type upgrade struct {
	*world
	t        *testing.T
	old, new install.Version
}

// lastRelease builds the version from which this one is an upgrade.
func lastRelease(t *testing.T) install.Version {
	t.Helper()
	content, err := os.ReadFile(filepath.FromSlash(upgradeFromFile))
	require.NoError(t, err)
	ref := os.Getenv(upgradeFromEnv)
	if ref == "" {
		ref, err = install.LastRelease(t.Context(), strings.TrimSpace(string(content)))
		require.NoError(t, err)
	}
	root, err := install.Extract(t.Context(), ref)
	require.NoError(t, err, "the upgrade test needs the last release; %s sets another tag or commit", upgradeFromEnv)
	began := time.Now()
	binary, err := install.Build(t.Context(), install.BuildOptions{Root: root, Dir: t.TempDir(), Race: true})
	require.NoError(t, err)
	t.Logf("built %s in %s", ref, time.Since(began).Round(time.Second))
	return install.Version{Root: root, Binary: binary}
}

// Replicas of the last release are replaced by replicas of this version and vice versa, under a stream of binds, of which three
// in ten wait for a volume. No bind fails, and each version reads the records of the other.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	u := &upgrade{t: t, old: lastRelease(t), new: install.Version{Binary: shared.prebind.Binary()}}
	// The default of the last release, 28 s, leaves a busy machine too little time for the answer.
	u.world = ownWorld(t, install.Options{Root: u.old.Root, Binary: u.old.Binary}, 2, "--hold=25s")
	var err error
	u.new.Root, err = filepath.Abs(filepath.Join("..", ".."))
	require.NoError(t, err)

	t.Run("configuration file", u.testConfiguration)
	t.Run("only the image is changed", u.testImageOnly)
	g := newGarage(t, u.world)
	byOld := g.granted("GPU-1")
	var byNew *parker
	newStream(t, u.world, "3s").during(func() {
		require.NoError(t, u.prebind.Upgrade(t.Context(), u.new))
		u.replaceFirst()
		u.replaceFirst()
		byNew = g.granted("GPU-2")
		g.assertHeld("GPU-1", byOld)
		require.NoError(t, u.prebind.Upgrade(t.Context(), u.old))
		u.replaceFirst()
	})
	this, last := u.prebind.Replicas()[0], u.prebind.Replicas()[1]
	t.Run("this version continues a bind of a killed replica of the last release", func(t *testing.T) { u.testKill(t, last, this) })
	require.NoError(t, last.Restart(t.Context()))
	t.Run("the last release continues a bind of a killed replica of this version", func(t *testing.T) { u.testKill(t, this, last) })
	g.assertHeld("GPU-2", byNew)
	g.assertHeld("GPU-1", byOld)
}

// replaceFirst replaces the oldest replica by one of the version in use.
func (u *upgrade) replaceFirst() {
	u.t.Helper()
	began := time.Now()
	r, err := u.prebind.Replace(u.t.Context(), u.prebind.Replicas()[0], u.args...)
	require.NoError(u.t, err)
	u.t.Logf("%s replaced after %s", r.Name(), time.Since(began).Round(time.Millisecond))
}

// testConfiguration checks the default file of one version with the other. A file of the last release works. The last release
// accepts a file of this version, or reports one line for each field.
func (u *upgrade) testConfiguration(t *testing.T) {
	run := func(v install.Version, args ...string) (string, string, error) {
		var out, errs bytes.Buffer
		cmd := exec.CommandContext(t.Context(), v.Binary, args...)
		cmd.Stdout, cmd.Stderr = &out, &errs
		err := cmd.Run()
		return out.String(), errs.String(), err
	}
	// The argument allocate of resource-claims was removed in this version; see CHANGELOG.md.
	removed := regexp.MustCompile(`(?m)^ *allocate:.*\n`)
	check := func(from, with install.Version) (string, error) {
		defaults, errs, err := run(from, "config", "defaults")
		require.NoError(t, err, errs)
		defaults = removed.ReplaceAllString(defaults, "")
		file := filepath.Join(t.TempDir(), "config.yaml")
		require.NoError(t, os.WriteFile(file, []byte(defaults), 0o600))
		_, errs, err = run(with, "config", "check", file)
		return errs, err
	}
	errs, err := check(u.old, u.new)
	assert.NoError(t, err, "this version should accept the file of the last release: %s", errs)
	if errs, err = check(u.new, u.old); err != nil {
		t.Logf("the last release reports: %s", errs)
		assert.Regexp(t, `^error: (\S*config\.yaml:\d+: [^\n]*\n)+$`, errs)
	}
}

// testImageOnly starts this version with the command line and the permissions of the last release. It becomes ready, or logs the
// missing permission.
func (u *upgrade) testImageOnly(t *testing.T) {
	u.prebind.Use(u.new)
	r, err := u.prebind.Launch(t.Context(), u.args...)
	require.NoError(t, err)
	isReady := false
	require.Eventually(t, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		isReady = r.WaitReady(ctx) == nil
		return isReady || strings.Contains(r.Tail(200), "the service account lacks a permission")
	}, patience, 100*time.Millisecond, "it is not ready, and does not say why")
	if gone := u.prebind.Remove(r); isReady {
		require.NoError(t, gone)
	}
}

// granted returns a bound pod with the device.
func (g *garage) granted(device string) *parker {
	g.t.Helper()
	p := g.parker(gpu(device))
	require.NoError(g.t, p.park())
	p.untilSettled(map[string]string{device: "1"})
	return p
}

// assertHeld checks that another pod does not get the device, and that it gets it after the deletion of the holder.
func (g *garage) assertHeld(device string, holder *parker) {
	g.t.Helper()
	next := g.parker(gpu(device))
	next.assertRefused(next.park(), holder.holds(device))
	holder.deletePod()
	require.NoError(g.t, next.park(), "the device should be free")
	next.untilSettled(map[string]string{device: "1"})
	*holder = *next
}

// testKill kills a replica that has granted a device to a bind that waits for its volume. The other replica continues the bind.
func (u *upgrade) testKill(t *testing.T, killed, other *install.Replica) {
	p := u.killDuringBind(t, killed, other)
	assert.Equal(t, other, p.replicaOfAttempt(p.untilBound().Annotations[attemptKey]))
}
