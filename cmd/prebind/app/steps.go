// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"reflect"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/mutators"
)

const (
	// ownPlugin stands for the engine itself where a metric names a plugin.
	ownPlugin = "binder"
	// readByPlugin is the reason of live reads that a plugin asks for itself.
	readByPlugin = "plugin"
)

// stepMetrics counts and times the work on binds. It carries no pod, node or namespace as
// a label.
type stepMetrics struct {
	clock        clock.PassiveClock
	plugins      *prometheus.HistogramVec
	mutators     *prometheus.HistogramVec
	reads        *prometheus.CounterVec
	holdsRefused prometheus.Counter
}

var _ binder.Tracker = (*stepMetrics)(nil)

// newStepMetrics registers the metrics.
func newStepMetrics(c clock.PassiveClock, registry prometheus.Registerer) (*stepMetrics, error) {
	s := &stepMetrics{
		clock: c,
		plugins: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "prebind_plugin_duration_seconds",
			Help:    "Time that a call of a PreBind plugin took, by extension point and result: ok, the kind of the error, or ended when it was given up from outside.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 4, 12),
		}, []string{"plugin", "extension_point", "result"}),
		mutators: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "prebind_mutator_duration_seconds",
			Help:    "Time that a call of a mutator took. A bind for which plugins have something to do calls it more than once.",
			Buckets: prometheus.ExponentialBuckets(0.000001, 10, 7),
		}, []string{"mutator"}),
		reads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "prebind_live_reads_total",
			Help: "Reads from the API server instead of the cache, by who read (a plugin, or binder for the engine), kind and reason: " +
				"missing and doubted for what the cache lacked or that would have ended the bind, outcome to see what became of a bind, plugin where a plugin asked for it.",
		}, []string{"plugin", "kind", "reason"}),
		holdsRefused: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "prebind_holds_refused_total",
			Help: "Calls that had to wait and were told at once to call again, because --max-holds calls were kept waiting.",
		}),
	}
	return s, register(registry, s.plugins, s.mutators, s.reads, s.holdsRefused)
}

// Step implements binder.Tracker: it times the calls of plugins.
func (s *stepMetrics) Step(ctx context.Context, step binder.Step) (context.Context, func(error)) {
	if step.Plugin == "" {
		return ctx, func(error) {}
	}
	plugin, point, begin := step.Plugin, step.Name, s.clock.Now()
	return ctx, func(err error) {
		s.plugins.WithLabelValues(plugin, point, binder.Result(err)).Observe(s.clock.Since(begin).Seconds())
	}
}

// ReadLive implements binder.Tracker.
func (s *stepMetrics) ReadLive(plugin, kind, reason string) {
	if plugin == "" {
		plugin = ownPlugin
	}
	s.reads.WithLabelValues(plugin, kind, reason).Inc()
}

// HoldRefused implements binder.Tracker.
func (s *stepMetrics) HoldRefused() { s.holdsRefused.Inc() }

// timed returns the mutator with its calls timed.
func (s *stepMetrics) timed(m mutators.Mutator) mutators.Mutator {
	return &timedMutator{Mutator: m, clock: s.clock, duration: s.mutators.WithLabelValues(m.Name())}
}

// timedMutator is a mutator whose calls are timed.
type timedMutator struct {
	mutators.Mutator
	clock    clock.PassiveClock
	duration prometheus.Observer
}

// Mutate implements mutators.Mutator.
func (m *timedMutator) Mutate(in mutators.Input) (mutators.Output, error) {
	begin := m.clock.Now()
	defer func() { m.duration.Observe(m.clock.Since(begin).Seconds()) }()
	return m.Mutator.Mutate(in)
}

// counted returns the reader with the plugin's reads counted.
func (s *stepMetrics) counted(live client.Reader, plugin string) client.Reader {
	return &countedReader{reader: live, plugin: plugin, reads: s.reads}
}

// countedReader is a reader whose reads are counted.
type countedReader struct {
	reader client.Reader
	plugin string
	reads  *prometheus.CounterVec
}

// Get implements client.Reader.
func (r *countedReader) Get(ctx context.Context, key client.ObjectKey, into client.Object, opts ...client.GetOption) error {
	r.count(into)
	return r.reader.Get(ctx, key, into, opts...)
}

// List implements client.Reader.
func (r *countedReader) List(ctx context.Context, into client.ObjectList, opts ...client.ListOption) error {
	r.count(into)
	return r.reader.List(ctx, into, opts...)
}

// count goes by the Go type, which is named like the kind: the object itself does not
// know its kind before it is read. Where only metadata is read, it does.
func (r *countedReader) count(into runtime.Object) {
	kind := into.GetObjectKind().GroupVersionKind().Kind
	if kind == "" {
		kind = reflect.Indirect(reflect.ValueOf(into)).Type().Name()
	}
	kind = strings.TrimSuffix(kind, "List")
	r.reads.WithLabelValues(r.plugin, kind, readByPlugin).Inc()
}
