// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"

	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/webhook"
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
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 15),
		}, []string{"decision"}),
	}
	for _, c := range []prometheus.Collector{m.decisions, m.conflicts, m.failures, m.duration} {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("registering metrics: %w", err)
		}
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
	return d
}
