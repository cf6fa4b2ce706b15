// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/prebind/prebind/test/install"
)

const configHead = "apiVersion: config.prebind.dev/v1alpha1\nkind: PrebindConfiguration\n"

// untilMetric waits until the metrics of all replicas contain the line.
func (w *world) untilMetric(t *testing.T, line string) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		for _, r := range w.prebind.Replicas() {
			all, err := r.Metrics(t.Context())
			require.NoError(c, err)
			assert.Contains(c, strings.Split(all, "\n"), line)
		}
	}, patience, 200*time.Millisecond, "%s should have %s", t.Name(), line)
}

// bound binds a new pod by hand to node-1, and returns it.
func (w *world) bound(t *testing.T) *corev1.Pod {
	t.Helper()
	b := newBench(t, w, nil)
	b.pod(byHand)
	require.NoError(t, b.bindByHand(b.binding("node-1")))
	return b.untilBound()
}

// Tests that change the configuration have their own installation. They run one after another.
func TestToggles(t *testing.T) {
	t.Parallel()
	w := ownWorld(t, 2)
	t.Run("by file", func(t *testing.T) { testToggleByFile(t, w) })
	t.Run("by flag", func(t *testing.T) { testToggleByFlag(t, w) })
}

// A change of the configuration file enables and disables mutators and plugins, and no bind of a steady stream fails. An invalid file does
// not change the configuration.
func testToggleByFile(t *testing.T, w *world) {
	set := func(config string) { require.NoError(t, w.prebind.SetConfig(t.Context(), configHead+config)) }
	newStream(t, w, "1s").during(func() {
		assert.NotContains(t, w.bound(t).Annotations, "bind-info.prebind.dev/calls")
		w.untilMetric(t, "prebind_config_generation 1")

		set("mutators: ['*', bind-info]\n")
		w.untilMetric(t, "prebind_config_generation 2")
		pod := w.bound(t)
		assert.Contains(t, pod.Annotations, "bind-info.prebind.dev/calls")
		assert.Contains(t, pod.Annotations, "topology.prebind.dev/zone")

		// Invalid files, unknown names, and missing permissions.
		for _, bad := range []struct{ config, says string }{
			{"mutators: [\n", "invalid YAML"},
			{"mutators: []\nplugins: []\n", `config.yaml:4: unknown field "plugins"`},
			{"prebindPlugins: ['*', volumes]\n", `unknown PreBind plugin "volumes"`},
			{"arguments:\n  resource-claims:\n    allocate: [gpu.example.com]\n", "PreBind plugin resource-claims: the service account lacks permissions"},
		} {
			set(bad.config)
			w.untilMetric(t, "prebind_config_last_reload_successful 0")
			w.untilOwnEvent(t, "ConfigurationRefused", bad.says)
			w.untilMetric(t, "prebind_config_generation 2")
			set("mutators: ['*', bind-info]\n")
			w.untilMetric(t, "prebind_config_last_reload_successful 1")
		}
		assert.Contains(t, w.bound(t).Annotations, "bind-info.prebind.dev/calls", "the old configuration should stay")

		set("mutators: []\nnamespaces:\n- names: ['e2e-*']\n  prebindTimeout: 5m\n")
		w.untilMetric(t, "prebind_config_generation 3")
		assert.NotContains(t, w.bound(t).Annotations, "topology.prebind.dev/zone")
	})

	t.Run("a disabled plugin should not take part", func(t *testing.T) {
		set("prebindPlugins: ['*', -volumebinding]\n")
		w.untilMetric(t, "prebind_config_generation 4")
		b := newBench(t, w, nil)
		b.claim("data", b.dynamic("10m"))
		b.pod(byHand, "data")
		require.NoError(t, b.bindByHand(b.binding("node-1")), "no plugin waits for the volume")
		b.untilBound()
	})

	t.Run("audit mode should report rejections without refusing binds", func(t *testing.T) {
		set("mode: Audit\n")
		w.untilMetric(t, "prebind_config_generation 5")
		b := newBench(t, w, nil)
		b.pod(byHand, "missing")
		client, warned := b.listeningClient()
		b.client = client
		require.NoError(t, b.bindByHand(b.binding("node-1")))
		assert.Empty(t, b.untilBound().Annotations, "the pod should have no annotations of Prebind")
		require.Len(t, warned.all(), 1)
		assert.Contains(t, warned.all()[0], "audit: the bind would be rejected (refused): volumebinding:")
		b.untilEvent("BindAudited", "would be rejected", b.ns+"/missing")
		assert.Equal(t, []string{"audited"}, b.decisions())
		x, code := newPending(t, w, "missing").explain("node-1")
		assert.Equal(t, 0, code, "the bind should be allowed")
		assert.EqualValues(t, "refuse", x.Prebind.Verdict)
	})

	t.Run("binds of a disabled namespace should be ignored", func(t *testing.T) {
		b := newBench(t, w, nil)
		set(fmt.Sprintf("namespaces:\n- names: [%s]\n  mode: 'Off'\n", b.ns))
		w.untilMetric(t, "prebind_config_generation 6")
		b.pod(byHand, "missing")
		require.NoError(t, b.bindByHand(b.binding("node-1")))
		assert.Empty(t, b.untilBound().Annotations)
		assert.Equal(t, []string{"passed-through"}, b.decisions())
		assert.Contains(t, w.bound(t).Annotations, "topology.prebind.dev/zone", "pods of other namespaces should get annotations")
	})

	t.Run("a disabled plugin should release the binds that wait for it", func(t *testing.T) {
		b := newBench(t, w, nil)
		b.podWith(byHand, expects(driver+"=550"), waits("5m"))
		bound := b.beginBind("node-1")
		b.untilEvent("WaitingForPreBind", "node-state: Node node-1")
		set("prebindPlugins: ['*', -node-state]\n")
		w.untilMetric(t, "prebind_config_generation 7")
		began := time.Now()
		require.NoError(t, b.end(bound), "client-go repeats the Binding")
		assert.Less(t, time.Since(began), aMoment)
		b.untilBound()
		assert.NotContains(t, b.decisions(), "refused")
	})
}

// newPending creates a pod with claims that no controller binds.
func newPending(t *testing.T, w *world, claims ...string) *bench {
	t.Helper()
	b := newBench(t, w, nil)
	b.pod(byHand, claims...)
	return b
}

// untilOwnEvent waits for an event about Prebind itself.
func (w *world) untilOwnEvent(t *testing.T, words ...string) {
	t.Helper()
	b := &bench{world: w, t: t, ns: install.Namespace}
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		assert.True(c, says(b.allEvents(), words...), "no event says %q: %q", words, b.allEvents())
	}, patience, again)
}

// Flags enable and disable mutators and plugins, and take precedence over the file.
func testToggleByFlag(t *testing.T, w *world) {
	require.NoError(t, w.prebind.SetConfig(t.Context(), configHead+"mutators: [bind-info]\n"))
	w.untilMetric(t, "prebind_config_generation 8")
	pod := w.bound(t)
	assert.NotContains(t, pod.Annotations, "topology.prebind.dev/zone", "the configuration of the file should apply")
	assert.Contains(t, pod.Annotations, "bind-info.prebind.dev/calls")

	restarted := func(args ...string) {
		require.NoError(t, w.prebind.Stop())
		_, err := w.prebind.Start(t.Context(), args...)
		require.NoError(t, err)
	}
	restarted("--mutators=topology", "--prebind-plugins=-volumebinding,*")
	pod = w.bound(t)
	assert.Contains(t, pod.Annotations, "topology.prebind.dev/zone")
	assert.NotContains(t, pod.Annotations, "bind-info.prebind.dev/calls", "the flag should take precedence over the file")
	b := newPending(t, w, "missing")
	require.NoError(t, b.bindByHand(b.binding("node-1")), "no plugin checks the claim")

	restarted("--prebind-plugins=volumebinding")
	pod = w.bound(t)
	assert.Contains(t, pod.Annotations, "bind-info.prebind.dev/calls", "without the flag, the file should apply")
	b = newPending(t, w, "missing")
	require.ErrorContains(t, b.bindByHand(b.binding("node-1")), b.ns+"/missing")
}
