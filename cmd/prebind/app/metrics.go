// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"

	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/webhook"
	"github.com/prebind/prebind/webhook/certificates"
)

// measured is an engine whose decisions are counted and timed. It carries no
// pod, node or namespace as a label.
type measured struct {
	engine    webhook.Engine
	clock     clock.PassiveClock
	decisions *prometheus.CounterVec
	conflicts *prometheus.CounterVec
	failures  *prometheus.CounterVec
	duration  *prometheus.HistogramVec
	wait      prometheus.Histogram
	audited   *prometheus.CounterVec
}

// RegisterMetrics registers every metric of 'prebind serve' that is named prebind_…,
// mostly without values: for the documents and for the tests of alerts and dashboards.
// What serve shows is registered by the same functions. A collector that is no metric
// or vector of Prometheus' own must show a value of each metric: that is how its type
// is known.
func RegisterMetrics(registry prometheus.Registerer) error {
	phases := map[string]int{}
	for _, name := range binder.Phases() {
		phases[name] = 0
	}
	_, measured := newMeasured(nil, clock.RealClock{}, registry)
	_, observed := newObserver(registry)
	_, steps := newStepMetrics(clock.RealClock{}, registry)
	underWay := newUnderWay(func() binder.Stats { return binder.Stats{Attempts: phases} }, registry)
	_, config := newConfigMetrics(registry)
	ready := newReady(func() error { return nil }, registry)
	_, refused := newRefused(registry)
	certs := register(registry, certificates.NewMetrics().Collectors()...)
	return errors.Join(measured, observed, steps, underWay, config, ready, refused, certs, newBuildInfo(registry))
}

// newBuildInfo registers what was built, and by which Go.
func newBuildInfo(registry prometheus.Registerer) error {
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name:        "prebind_build_info",
		Help:        "Always 1. The labels tell the version and the Go version it was built by.",
		ConstLabels: prometheus.Labels{"version": version, "goversion": runtime.Version()},
	})
	info.Set(1)
	return register(registry, info)
}

// newMeasured registers the metrics and returns the measured engine.
func newMeasured(engine webhook.Engine, c clock.PassiveClock, registry prometheus.Registerer) (*measured, error) {
	m := &measured{
		engine: engine,
		clock:  c,
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "prebind_decisions_total",
			Help: "Answers to Bindings, by decision and by the plugin that decided against the bind.",
		}, []string{"decision", "plugin"}),
		conflicts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "prebind_mutator_conflicts_total",
			Help: "Annotations and labels of a mutator for which the Binding or the pod had another value, by where that stood and by which of the two stands.",
		}, []string{"mutator", "source", "result"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "prebind_mutator_failures_total",
			Help: "Bindings for which a mutator failed: without what it adds or, where it is required, refused.",
		}, []string{"mutator"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "prebind_decision_duration_seconds",
			Help:    "Time until the answer to a Binding, holds included.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 17),
		}, []string{"decision"}),
		wait: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "prebind_bind_wait_seconds",
			Help:    "Time from the first call for a bind, as this replica saw it, until it was allowed; only binds for which a plugin had something to do.",
			Buckets: prometheus.ExponentialBuckets(0.01, 2, 17),
		}),
		audited: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "prebind_audited_decisions_total",
			Help: "What would have been decided on Bindings in audit mode, which all went ahead, by decision and by the plugin that would have decided against the bind.",
		}, []string{"decision", "plugin"}),
	}
	if err := register(registry, m.decisions, m.conflicts, m.failures, m.duration, m.wait, m.audited); err != nil {
		return nil, err
	}
	return m, nil
}

// Bind implements webhook.Engine.
func (m *measured) Bind(ctx context.Context, r binder.Request) binder.Decision {
	begin := m.clock.Now()
	d := m.engine.Bind(ctx, r)
	plugin := ""
	if d.Err != nil {
		plugin = d.Err.Plugin
	}
	m.decisions.WithLabelValues(d.Kind(), plugin).Inc()
	m.audit(d.Audit)
	for _, c := range d.Conflicts {
		result := "replaced"
		if c.Kept {
			result = "kept"
		}
		m.conflicts.WithLabelValues(c.Mutator, c.Source, result).Inc()
	}
	for _, f := range d.Failures {
		m.failures.WithLabelValues(f.Mutator).Inc()
	}
	m.duration.WithLabelValues(d.Kind()).Observe(m.clock.Since(begin).Seconds())
	if d.Err == nil && d.Attempt != "" {
		m.wait.Observe(d.Waited.Seconds())
	}
	return d
}

// audit counts a decision that is only reported; nil is none.
func (m *measured) audit(a *binder.Audit) {
	if a == nil {
		return
	}
	plugin := ""
	if a.Err != nil {
		plugin = a.Err.Plugin
	}
	m.audited.WithLabelValues(a.Kind, plugin).Inc()
}

// newRefused registers the counter of what the webhook's limits refuse, and returns the
// function that counts. Every reason has a value from the start: an alert on an increase
// would not see the first one otherwise.
func newRefused(registry prometheus.Registerer) (func(reason string), error) {
	refused := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "prebind_webhook_refused_total",
		Help: "Requests that were not read to their end, by reason: connections (too many were open), bodies (all of them together were too large), or slow (the body took too long to arrive).",
	}, []string{"reason"})
	for _, reason := range webhook.RefusalReasons() {
		refused.WithLabelValues(reason)
	}
	return func(reason string) { refused.WithLabelValues(reason).Inc() }, register(registry, refused)
}

// newReady registers whether probe has nothing against this replica.
func newReady(probe func() error, registry prometheus.Registerer) error {
	return register(registry, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "prebind_ready",
		Help: "1 if this replica is ready for Bindings, else 0; /readyz says why.",
	}, func() float64 {
		if probe() != nil {
			return 0
		}
		return 1
	}))
}

// failed is the result of what is to be tried again, or was given up.
const failed = "failed"

// observer counts what becomes of attempts, and shows what is under way.
type observer struct {
	attempts  *prometheus.CounterVec
	rollBacks *prometheus.CounterVec
	swept     *prometheus.CounterVec
}

var _ binder.Observer = (*observer)(nil)

// newObserver registers its counters. Those of failures of these plugins are there
// from the start: an alert on their increase would not see the first one otherwise.
func newObserver(registry prometheus.Registerer, plugins ...string) (*observer, error) {
	o := &observer{
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "prebind_attempts_total",
			Help: "Attempts that had prepared their bind, by what became of it: bound, bound by another attempt, or not bound.",
		}, []string{"outcome"}),
		rollBacks: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "prebind_rollbacks_total",
			Help: "PreBindRollBacks of plugins, by result: done, or failed when it was given up after minutes of repeats.",
		}, []string{"plugin", "result"}),
		swept: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "prebind_swept_total",
			Help: "What ended attempts had left behind, by plugin, verdict (commit or roll back), and result: done, or failed when it is to be tried again.",
		}, []string{"plugin", "verdict", "result"}),
	}
	for _, plugin := range plugins {
		o.rollBacks.WithLabelValues(plugin, failed)
		for _, verdict := range binder.Verdicts() {
			o.swept.WithLabelValues(plugin, verdict, failed)
		}
	}
	return o, register(registry, o.attempts, o.rollBacks, o.swept)
}

// AttemptEnded implements binder.Observer.
func (o *observer) AttemptEnded(outcome string) { o.attempts.WithLabelValues(outcome).Inc() }

// RolledBack implements binder.Observer.
func (o *observer) RolledBack(plugin string, err error) {
	o.rollBacks.WithLabelValues(plugin, resultOf(err)).Inc()
}

// Swept implements binder.Observer.
func (o *observer) Swept(plugin, verdict string, err error) {
	o.swept.WithLabelValues(plugin, verdict, resultOf(err)).Inc()
}

func resultOf(err error) string {
	if err != nil {
		return failed
	}
	return "done"
}

// underWay shows the numbers of an engine when they are asked for.
type underWay struct {
	stats                     func() binder.Stats
	attempts, holds, maxHolds *prometheus.Desc
}

// newUnderWay registers the numbers that stats returns.
func newUnderWay(stats func() binder.Stats, registry prometheus.Registerer) error {
	return register(registry, &underWay{
		stats:    stats,
		attempts: prometheus.NewDesc("prebind_attempts", "Attempts under way, by phase.", []string{"phase"}, nil),
		holds:    prometheus.NewDesc("prebind_holds", "Calls that are held. Each takes a concurrency seat of the API server, unless the FlowSchema prebind exempts it.", nil, nil),
		maxHolds: prometheus.NewDesc("prebind_max_holds", "Maximum number of calls held at a time: --max-holds, and 32 times as many that the FlowSchema prebind exempts.", nil, nil),
	})
}

// Describe implements prometheus.Collector.
func (u *underWay) Describe(to chan<- *prometheus.Desc) {
	to <- u.attempts
	to <- u.holds
	to <- u.maxHolds
}

// Collect implements prometheus.Collector.
func (u *underWay) Collect(to chan<- prometheus.Metric) {
	s := u.stats()
	for phase, n := range s.Attempts {
		to <- prometheus.MustNewConstMetric(u.attempts, prometheus.GaugeValue, float64(n), phase)
	}
	to <- prometheus.MustNewConstMetric(u.holds, prometheus.GaugeValue, float64(s.Holds))
	to <- prometheus.MustNewConstMetric(u.maxHolds, prometheus.GaugeValue, float64(s.MaxHolds))
}

func register(registry prometheus.Registerer, collectors ...prometheus.Collector) error {
	for _, c := range collectors {
		if err := registry.Register(c); err != nil {
			return fmt.Errorf("registering metrics: %w", err)
		}
	}
	return nil
}
