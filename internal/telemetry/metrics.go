// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package telemetry

import (
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/prebind/prebind/internal/work"
)

// metrics are the metrics that the Recorder writes.
type metrics struct {
	decisions    *prometheus.CounterVec
	duration     *prometheus.HistogramVec
	wait         prometheus.Histogram
	audited      *prometheus.CounterVec
	conflicts    *prometheus.CounterVec
	failures     *prometheus.CounterVec
	attempts     *prometheus.CounterVec
	rollBacks    *prometheus.CounterVec
	swept        *prometheus.CounterVec
	refused      *prometheus.CounterVec
	plugins      *prometheus.HistogramVec
	mutators     *prometheus.HistogramVec
	reads        *prometheus.CounterVec
	holdsRefused prometheus.Counter
}

// newMetrics returns registered metrics. It panics if the registry already has one of them.
func newMetrics(f promauto.Factory, version, config string) metrics {
	f.NewGauge(prometheus.GaugeOpts{
		Name:        "prebind_build_info",
		Help:        "Always 1, with the versions of Prebind and of Go as labels.",
		ConstLabels: prometheus.Labels{"version": version, "goversion": runtime.Version()},
	}).Set(1)
	f.NewGauge(prometheus.GaugeOpts{
		Name:        "prebind_config_info",
		Help:        "Always 1, with the hash of the configuration as a label. Replicas with the same hash behave in the same way.",
		ConstLabels: prometheus.Labels{"hash": config},
	}).Set(1)
	return metrics{
		decisions: f.NewCounterVec(prometheus.CounterOpts{
			Name: "prebind_decisions_total",
			Help: "Answers to Bindings, by decision and by the plugin that rejected or delayed the bind.",
		}, []string{"decision", "plugin"}),
		duration: f.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "prebind_decision_duration_seconds",
			Help:    "Time from a call to its answer, holds included.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 17),
		}, []string{"decision"}),
		wait: f.NewHistogram(prometheus.HistogramOpts{
			Name:    "prebind_bind_wait_seconds",
			Help:    "Time from the first call for a bind at this replica until it allowed the bind. Includes only binds that waited or for which a plugin wrote.",
			Buckets: prometheus.ExponentialBuckets(0.01, 2, 17),
		}),
		audited: f.NewCounterVec(prometheus.CounterOpts{
			Name: "prebind_audited_decisions_total",
			Help: "Decisions that mode Audit did not apply, by decision and by the plugin that would have rejected or delayed the bind. All of these Bindings were allowed.",
		}, []string{"decision", "plugin"}),
		conflicts: f.NewCounterVec(prometheus.CounterOpts{
			Name: "prebind_mutator_conflicts_total",
			Help: "Annotations and labels of a mutator for which the Binding or the pod had another value, by the source of that value and by result: replaced or kept.",
		}, []string{"mutator", "source", "result"}),
		failures: f.NewCounterVec(prometheus.CounterOpts{
			Name: "prebind_mutator_failures_total",
			Help: "Failed calls of mutators. Prebind skips the mutator or, if it is required, rejects the Binding.",
		}, []string{"mutator"}),
		attempts: f.NewCounterVec(prometheus.CounterOpts{
			Name: "prebind_attempts_total",
			Help: "Allowed binds for which a plugin had written, by outcome: bound or not bound.",
		}, []string{"outcome"}),
		rollBacks: f.NewCounterVec(prometheus.CounterOpts{
			Name: "prebind_rollbacks_total",
			Help: "Rollbacks of plugins, by result: done, or failed if Prebind gave up after minutes of retries.",
		}, []string{"plugin", "result"}),
		swept: f.NewCounterVec(prometheus.CounterOpts{
			Name: "prebind_swept_total",
			Help: "Marks of ended attempts that Prebind completed, by plugin, verdict (commit or roll back) and result: done, or failed if Prebind will retry.",
		}, []string{"plugin", "verdict", "result"}),
		refused: f.NewCounterVec(prometheus.CounterOpts{
			Name: "prebind_webhook_refused_total",
			Help: "Requests that Prebind did not read to the end, by reason: connections (too many were open), bodies (all bodies together were too large), or slow (the body took too long to arrive).",
		}, []string{"reason"}),
		plugins: f.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "prebind_plugin_duration_seconds",
			Help:    "Duration of calls of PreBind plugins, by extension point and result: ok, the kind of the error, or ended if the call was canceled.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 4, 12),
		}, []string{"plugin", "extension_point", "result"}),
		mutators: f.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "prebind_mutator_duration_seconds",
			Help:    "Duration of calls of mutators.",
			Buckets: prometheus.ExponentialBuckets(0.000001, 10, 7),
		}, []string{"mutator"}),
		reads: f.NewCounterVec(prometheus.CounterOpts{
			Name: "prebind_live_reads_total",
			Help: "Reads from the API server instead of the cache, by plugin (binder for the engine), kind and reason: missing (not in the cache), " +
				"doubted (the cached object would end the bind), outcome (to check whether the pod was bound), or plugin (the plugin asked for it).",
		}, []string{"plugin", "kind", "reason"}),
		holdsRefused: f.NewCounter(prometheus.CounterOpts{
			Name: "prebind_holds_refused_total",
			Help: "Calls that had to wait and that Prebind answered 429 at once, because it already held --max-holds calls.",
		}),
	}
}

// addGauges registers the metrics that read the sources of Show at each collection.
func (r *Recorder) addGauges(f promauto.Factory) {
	gauge := func(name, help string, labels prometheus.Labels, value func() float64) {
		f.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels}, value)
	}
	gauge("prebind_ready", "1 if this replica is ready for Bindings, else 0. /readyz returns the reason.", nil, func() float64 {
		if r.ready() != nil {
			return 0
		}
		return 1
	})
	gauge("prebind_holds", "Calls that Prebind holds now. Each occupies a concurrency seat of the API server, unless the FlowSchema prebind exempts it.", nil,
		func() float64 { return float64(r.stats().Holds) })
	gauge("prebind_max_holds", "Maximum number of calls held at a time: --max-holds, plus 512 that the FlowSchema prebind exempts.", nil,
		func() float64 { return float64(r.stats().MaxHolds) })
	for _, phase := range work.Phases() {
		gauge("prebind_attempts", "Attempts in progress, by phase.", prometheus.Labels{"phase": phase}, func() float64 { return float64(r.stats().Attempts[phase]) })
	}
}
