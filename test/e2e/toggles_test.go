// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strings"
	"testing"
	"time"

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

// configure changes the configuration file, and replaces the replicas one after another.
func (w *world) configure(t *testing.T, config string) {
	t.Helper()
	require.NoError(t, w.prebind.SetConfig(t.Context(), config))
	require.NoError(t, w.prebind.Rollout(t.Context(), w.args...))
}

// A rollout with another configuration file enables and disables mutators and plugins, and no bind of a steady stream fails. A replica with an
// invalid file does not start.
func TestConfiguration(t *testing.T) {
	t.Parallel()
	w := ownWorld(t, 2)
	require.NoError(t, w.prebind.AddComponents(t.Context(), "plugins/node-ready"))
	waiting := newBench(t, w, nil)
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
		w.configure(t, configHead+"mutators: ['*', bind-info]\nprebindPlugins: ['*', -node-state]\n")
		pod := w.bound(t)
		assert.Contains(t, pod.Annotations, "bind-info.prebind.dev/calls")
		assert.Contains(t, pod.Annotations, "topology.prebind.dev/zone")
	})
	require.NoError(t, waiting.end(bound), "the repeated call does not wait for a disabled plugin")
	waiting.untilBound()

	// The shipped roles contain the permissions of these plugins.
	w.configure(t, configHead+"prebindPlugins: ['*', node-ready, start-limit]\narguments:\n  node-ready: {agents: [{namespace: agents, selector: app=cni}]}\n")
	w.bound(t)
}
