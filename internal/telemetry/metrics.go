// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package telemetry

import (
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/internal/work"
)

// metrics are the metrics that the Recorder writes.
type metrics struct {
	decisions    *prometheus.CounterVec
	duration     *prometheus.HistogramVec
	wait         prometheus.Observer
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
func newMetrics(f promauto.Factory, version, config, mode string) metrics {
	info := func(name, help string, labels prometheus.Labels) {
		f.NewGauge(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels}).Set(1)
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return f.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return f.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	}
	info("prebind_build_info", "Always 1, with the versions of Prebind and of Go as labels.", prometheus.Labels{"version": version, "goversion": runtime.Version()})
	info("prebind_config_info", "Always 1, with the hash of the configuration and its mode as labels. Replicas with the same hash behave in the same way.",
		prometheus.Labels{"hash": config, "mode": mode})
	return metrics{
		decisions: counter("prebind_decisions_total",
			"Answers to Bindings without dry runs, by decision and by the plugin that rejected or delayed the bind.", "decision", "plugin"),
		duration: histogram("prebind_decision_duration_seconds",
			"Time from a call to its answer, holds included.", prometheus.ExponentialBuckets(0.0005, 2, 17), "decision"),
		wait: histogram("prebind_bind_wait_seconds",
			"Time from the first call for a bind at this replica until it allowed or rejected the bind. Includes only binds that waited or for which a plugin wrote. With rejectAfter, each rejection counts.", prometheus.ExponentialBuckets(0.01, 2, 17)).WithLabelValues(),
		audited: counter("prebind_audited_decisions_total",
			"Decisions in mode Audit, by decision and by the plugin that would have rejected the bind, which is empty for most waits. All of these Bindings were allowed.", "decision", "plugin"),
		conflicts: counter("prebind_mutator_conflicts_total",
			"Annotations and labels of a mutator for which the Binding or the pod had another value, by the source of that value and by result: replaced or kept.", "mutator", "source", "result"),
		failures: counter("prebind_mutator_failures_total",
			"Failed calls of mutators. Prebind skips the mutator or, if it is required, rejects the Binding. Not counted in mode Audit.", "mutator"),
		attempts: counter("prebind_attempts_total",
			"Allowed binds for which a plugin had written, by outcome: bound or not bound.", "outcome"),
		rollBacks: counter("prebind_rollbacks_total",
			"Rollbacks of plugins, by result: done, or failed if a sweep has to repeat it.", "plugin", "result"),
		swept: counter("prebind_swept_total",
			"Work for ended attempts, by plugin, verdict (commit or roll back a mark, list the marks and read their pods, tidy) and result: done (of commit and roll back), or failed if Prebind will retry.", "plugin", "verdict", "result"),
		refused: counter("prebind_webhook_refused_total",
			"Requests that Prebind did not read to the end, by reason: connections (too many were open), bodies (all bodies together were too large), or slow (the body took too long to arrive).", "reason"),
		plugins: histogram("prebind_plugin_duration_seconds",
			"Duration of calls of PreBind plugins, by extension point and result: ok, the kind of the error, or ended if the call was canceled.", prometheus.ExponentialBuckets(0.0005, 4, 12), "plugin", "extension_point", "result"),
		mutators: histogram("prebind_mutator_duration_seconds",
			"Duration of calls of mutators.", prometheus.ExponentialBuckets(0.000001, 10, 7), "mutator"),
		reads: counter("prebind_live_reads_total",
			"Reads from the API server instead of the cache, by plugin (binder for the engine), kind and reason: missing (not in the cache), "+
				"doubted (the cached object would end the bind), outcome (to check whether the pod was bound), or plugin (the plugin asked for it).", "plugin", "kind", "reason"),
		holdsRefused: counter("prebind_holds_refused_total",
			"Calls that had to wait and that Prebind answered 429 at once, because it already held as many as it may.").WithLabelValues(),
	}
}

// Show registers the metrics that read the engine's statistics and the replica's readiness at each collection.
func (r *Recorder) Show(stats func() binder.Stats, ready func() error) {
	gauge := func(name, help string, labels prometheus.Labels, value func() float64) {
		r.register.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels}, value)
	}
	gauge("prebind_ready", "1 if this replica is ready for Bindings, else 0. /readyz returns the reason.", nil, func() float64 {
		if ready() != nil {
			return 0
		}
		return 1
	})
	gauge("prebind_holds", "Calls that Prebind holds now. Each occupies a concurrency seat of the API server, unless the FlowSchema prebind exempts it.", nil,
		func() float64 { return float64(stats().Holds) })
	gauge("prebind_max_holds", "Maximum number of calls held at a time: --max-holds, plus 512 that the FlowSchema prebind exempts.", nil,
		func() float64 { return float64(stats().MaxHolds) })
	for _, phase := range work.Phases() {
		gauge("prebind_attempts", "Attempts in progress, by phase.", prometheus.Labels{"phase": phase}, func() float64 { return float64(stats().Attempts[phase]) })
	}
}
