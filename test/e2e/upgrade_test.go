// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
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

// firstInstallation is the kustomization that docs/install.md applies before config/webhook.
const firstInstallation = "config/first-install"

// During the two steps of docs/install.md, with 20 binds per second, no bind fails before a replica exists, while replicas start,
// or after the switch to mode Enforce and failurePolicy Fail.
func TestFirstInstallation_NoBindFails(t *testing.T) {
	t.Parallel()
	c := ownCluster(t, cluster.Options{})
	client := c.Client()
	w := &world{cluster: c, client: client}
	require.NoError(t, cluster.CreateNodes(t.Context(), client, cluster.Nodes("node", 6)...))

	s := newStream(t, w, "1s")
	some := func() {
		t.Helper()
		last := s.answered()
		require.EventuallyWithT(t, func(c *assert.CollectT) { assert.Greater(c, s.answered(), last+atLeast/5) }, patience, again)
	}
	s.during(func() {
		some()
		var err error
		w.prebind, err = install.New(t.Context(), install.Options{Cluster: c, Binary: shared.prebind.Binary(), Kustomization: firstInstallation})
		require.NoError(t, err)
		w.killAfter(t)
		some() // The API server calls a webhook that no replica serves.
		for range 2 {
			_, err := w.start(t.Context())
			require.NoError(t, err)
		}
		some()
		require.NoError(t, w.prebind.Apply(t.Context(), "config/webhook"))
		require.NoError(t, w.prebind.Rollout(t.Context(), w.args...))
		some()
	})

	config, err := client.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(t.Context(), webhookConfiguration, metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, new(admissionregistrationv1.Fail), config.Webhooks[0].FailurePolicy)
	assert.NotEmpty(t, config.Webhooks[0].ClientConfig.CABundle, "the second step keeps the injected CA")
	first, err := client.CoreV1().Pods(s.ns).Get(t.Context(), "pod-2", metav1.GetOptions{})
	require.NoError(t, err)
	assert.NotContains(t, first.Annotations, "topology.prebind.dev/hostname")
	last, err := client.CoreV1().Pods(s.ns).Get(t.Context(), fmt.Sprintf("pod-%d", s.posted/10*10-1), metav1.GetOptions{})
	require.NoError(t, err)
	assert.Contains(t, last.Annotations, "topology.prebind.dev/hostname")

	require.NoError(t, w.prebind.Stop())
	_, err = s.createPod("unbound", byHand)
	require.NoError(t, err)
	require.Error(t, s.bindByHand(gen.Binding(gen.Pod("unbound", gen.InNamespace(s.ns)), "node-1")))
	s.assertAlertsSelectMetrics()
}

var selector = regexp.MustCompile(`(apiserver_\w+)\{([^}]*)\}`)

// assertAlertsSelectMetrics checks that the alerts' selectors of the API server's metrics match series that the API
// server has after calls that succeeded, failed, and were ignored.
func (b *bench) assertAlertsSelectMetrics() {
	b.t.Helper()
	rules, err := os.ReadFile("../../config/webhook/monitoring/prometheusrule.yaml")
	require.NoError(b.t, err)
	metrics, err := b.client.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(b.t.Context())
	require.NoError(b.t, err)
	found := selector.FindAllStringSubmatch(string(rules), -1)
	require.NotEmpty(b.t, found)
	for _, f := range found {
		assert.True(b.t, slices.ContainsFunc(strings.Split(string(metrics), "\n"), func(line string) bool {
			return strings.HasPrefix(line, f[1]+"{") && !slices.ContainsFunc(strings.Split(f[2], ","), func(m string) bool {
				label, value, equal := strings.Cut(m, `="`)
				if !equal {
					return true
				}
				name, negated := strings.CutSuffix(label, "!")
				return !strings.Contains(line, name+`="`) || negated == strings.Contains(line, name+`="`+value)
			})
		}), "no series of the API server matches %s", f[0])
	}
}
