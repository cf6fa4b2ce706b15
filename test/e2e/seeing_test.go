// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"net/http"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/prebind/prebind/internal/work"
	"github.com/prebind/prebind/test/gen"
	"github.com/prebind/prebind/test/install"
	"github.com/prebind/prebind/test/metrics"
	"github.com/prebind/prebind/test/otlp"
)

// observed is a replica with /debug and traces.
type observed struct {
	*world
	replica   *install.Replica
	debug     string
	collector *otlp.Receiver
}

// startObserved starts the first replica of the world.
func startObserved(t *testing.T, w *world) *observed {
	t.Helper()
	o := &observed{world: w, collector: otlp.Receive(t)}
	var err error
	o.debug, err = w.cluster.ReserveAddress(t.Context())
	require.NoError(t, err)
	o.replica, err = w.prebind.Start(t.Context(), slices.Concat(w.args, []string{
		"--debug-bind-address=" + o.debug, "--tracing-endpoint=" + o.collector.Address(), "--tracing-sampling-rate-per-million=1000000",
	})...)
	require.NoError(t, err)
	return o
}

// test binds a pod that waits and posts a Binding that is rejected. It then checks metrics and /debug, and that the collector gets
// the spans of the bind.
func (o *observed) test(t *testing.T) {
	b := newBench(t, o.world, nil)
	b.claim("data", b.dynamic("3s"))
	b.podWith(byHand, usesClaims([]string{"data"})...)
	bound := b.beginBind("node-1")
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		var attempts []work.InFlight
		body, _, err := install.Fetch(t.Context(), "http://"+o.debug+"/debug/attempts")
		require.NoError(c, err)
		require.NoError(c, json.Unmarshal([]byte(body), &attempts))
		require.Len(c, attempts, 1)
		assert.Equal(c, []string{b.ns, "pod", "node-1", "volumebinding"}, []string{attempts[0].Namespace, attempts[0].Pod, attempts[0].Node, attempts[0].Plugin})
	}, patience, 20*time.Millisecond, "/debug/attempts should show the bind")
	require.NoError(t, b.end(bound))
	pod := b.untilBound()
	other, err := b.createPod("other", byHand)
	require.NoError(t, err)
	require.True(t, apierrors.IsForbidden(b.bindByHand(gen.Binding(other, "no-such-node"))), "the node does not exist")

	for path, words := range map[string]string{"config": "kind: PrebindConfiguration", "pprof/": "goroutine"} {
		body, code, err := install.Fetch(t.Context(), "http://"+o.debug+"/debug/"+path)
		require.NoError(t, err)
		assert.Equal(t, http.StatusOK, code, path)
		assert.Contains(t, body, words, path)
	}
	_, code, err := install.Fetch(t.Context(), "http://"+shared.prebind.Replicas()[0].MetricsAddress()+"/debug/pprof/")
	require.NoError(t, err)
	assert.Equal(t, http.StatusNotFound, code, "debug is off by default")
	b.checkMetrics(t, o.replica, pod)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		assert.NotEmpty(c, o.collector.Spans("prebind.attempt", pod.Annotations[attemptKey]))
	}, patience, 100*time.Millisecond, "the collector should get the spans of the bind")
}

// Lines of the text format of Prebind's metrics.
var (
	metricType   = regexp.MustCompile(`(?m)^# TYPE (prebind_\w+) (\w+)$`)
	metricSeries = regexp.MustCompile(`(?m)^prebind_.*$`)
)

// checkMetrics checks that the metrics of the binds exist, that all metrics are documented, and that they contain no names of pods, nodes
// or namespaces.
func (b *bench) checkMetrics(t *testing.T, replica *install.Replica, pod *corev1.Pod) {
	t.Helper()
	text, err := replica.Metrics(t.Context())
	require.NoError(t, err)
	known, err := metrics.All()
	require.NoError(t, err)
	types := map[string]string{}
	for _, m := range known {
		types[m.Name] = m.Type
	}
	for _, found := range metricType.FindAllStringSubmatch(text, -1) {
		name := found[1]
		assert.Contains(t, types, name, "%s is registered but not documented: add it to the Recorder in telemetry", name)
		assert.Equal(t, types[name], found[2], name)
	}
	for _, series := range metricSeries.FindAllString(text, -1) {
		for _, secret := range []string{b.ns, "node-1", string(pod.UID), "no-such-node"} {
			assert.NotContains(t, series, secret)
		}
	}
	assert.Contains(t, text, `prebind_plugin_duration_seconds_count{extension_point="PreBind",plugin="volumebinding",result="ok"} 1`)
	assert.Contains(t, text, "prebind_bind_wait_seconds_count 1")
	assert.Contains(t, text, `prebind_decisions_total{decision="refused",plugin="binder"} 1`)
	assert.Contains(t, text, `prebind_live_reads_total{kind="Node",plugin="binder",reason="missing"}`)
}
