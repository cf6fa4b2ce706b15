// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prebind/prebind/test/install"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
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
func TestConfiguration(t *testing.T) {
	t.Parallel()
	w := ownWorld(t, install.Options{}, 2)
	require.NoError(t, w.prebind.AddComponents(t.Context(), "plugins/node-ready"))
	t.Run("plugins and mutators", func(t *testing.T) { testToggleByFile(t, w) })
	t.Run("start-limit", func(t *testing.T) { testStartLimit(t, w) })
	t.Run("node-ready", func(t *testing.T) { testNodeReady(t, w) })
}

// configure changes the configuration file, and replaces the replicas one after another.
func (w *world) configure(t *testing.T, config string) {
	t.Helper()
	require.NoError(t, w.prebind.SetConfig(t.Context(), config))
	require.NoError(t, w.prebind.Rollout(t.Context(), w.args...))
}

// A rollout with another configuration file enables and disables mutators and plugins, and no bind of a steady stream fails. A replica with an
// invalid file does not start.
func testToggleByFile(t *testing.T, w *world) {
	audited, ignored, waiting, rejected := newBench(t, w, nil), newBench(t, w, nil), newBench(t, w, nil), newBench(t, w, nil)
	waiting.podWith(byHand, expectsDriver(), waits("5m"))
	bound := waiting.beginBind("node-1")
	waiting.untilEvent("WaitingForPreBind", "node-state: Node node-1")
	newStream(t, w, "1s").during(func() {
		assert.NotContains(t, w.bound(t).Annotations, "bind-info.prebind.dev/calls")
		require.NoError(t, w.prebind.SetConfig(t.Context(), configHead+"prebindPlugins: ['*', volumes]\n"))
		r, err := w.start(t.Context())
		require.Error(t, err)
		assert.Contains(t, r.Tail(10), `unknown PreBind plugin "volumes"`)
		require.Error(t, w.prebind.Remove(r), "the process has exited")
		w.configure(t, configHead+fmt.Sprintf("mutators: ['*', bind-info]\nprebindPlugins: ['*', -node-state]\n"+
			"namespaces:\n- {names: [%s], mode: Audit}\n- {names: [%s], mode: 'Off'}\n- {names: [%s], rejectAfter: 1s}\n", audited.ns, ignored.ns, rejected.ns))
		pod := w.bound(t)
		assert.Contains(t, pod.Annotations, "bind-info.prebind.dev/calls")
		assert.Contains(t, pod.Annotations, "topology.prebind.dev/zone")
	})
	require.NoError(t, waiting.end(bound), "the repeated call does not wait for a disabled plugin")
	waiting.untilBound()

	t.Run("audit mode should report rejections without refusing binds", func(t *testing.T) {
		b := audited
		b.t = t
		b.pod(byHand, "missing")
		x, code := b.explain("node-1")
		assert.Equal(t, 0, code, "the bind should be allowed")
		assert.EqualValues(t, "refuse", x.Prebind.Verdict)
		client, warned := b.listeningClient()
		b.client = client
		require.NoError(t, b.bindByHand(b.binding("node-1")))
		assert.Empty(t, b.untilBound().Annotations, "the pod should have no annotations of Prebind")
		assert.Regexp(t, `^Warning: .*audit: the bind would be rejected \(refused\): volumebinding:.*\n$`, warned.String())
		b.untilEvent("BindAudited", "would be rejected", b.ns+"/missing")
		assert.Contains(t, b.decisions(), "audited")
	})

	t.Run("binds of a disabled namespace should be ignored", func(t *testing.T) {
		b := ignored
		b.t = t
		b.pod(byHand, "missing")
		require.NoError(t, b.bindByHand(b.binding("node-1")))
		assert.Empty(t, b.untilBound().Annotations)
		assert.Equal(t, []string{"passed-through"}, b.decisions())
	})

	t.Run("a bind that waits should be rejected, and continue", func(t *testing.T) {
		b := rejected
		b.t = t
		b.claim("data", b.dynamic("5s"))
		b.pod(byHand, "data")
		b.assertRefused(b.bindByHand(b.binding("node-1")), "waiting for provisioning", "Prebind continues to prepare it")
		require.Eventually(t, func() bool { return b.bindByHand(b.binding("node-1")) == nil }, patience, again, "a later Binding should be allowed")
		b.untilBound()
	})
}
