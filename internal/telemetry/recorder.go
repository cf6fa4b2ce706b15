// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package telemetry provides metrics, traces and debug endpoints. A Recorder writes all metrics
// with the prefix prebind_ and all spans. The debug server shows the state of a replica.
package telemetry

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-base/tracing"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/work"
	"github.com/prebind/prebind/mutators"
	"github.com/prebind/prebind/webhook"
)

const (
	// readByPlugin is the reason of live reads that a plugin requests.
	readByPlugin = "plugin"
	// failed is the result of work that failed. Prebind may retry it.
	failed = "failed"
	// internal is the result of a step that failed; see work.Result.
	internal = "internal"
)

// Options are the options of a Recorder.
type Options struct {
	// Registry receives the metrics. Required.
	Registry prometheus.Registerer
	// Clock measures durations. Required.
	Clock clock.PassiveClock
	// Version is the version of Prebind. Config is the hash of its configuration, and Mode its mode.
	Version, Config, Mode string
	// Plugins are all registered plugins, with their metrics. Their failure counters exist from the
	// start, so that an alert on an increase does not miss the first failure.
	Plugins []framework.Registration
	// Traces creates spans. Optional.
	Traces *Traces
}

// Recorder records metrics and spans of binds. Labels of metrics never contain pods, nodes or
// namespaces. All methods are safe for concurrent use.
type Recorder struct {
	metrics
	register promauto.Factory
	clock    clock.PassiveClock
	traces   *Traces
}

var _ work.Recorder = (*Recorder)(nil)

// New returns a Recorder whose metrics are registered. The registry has no metrics of Prebind yet.
func New(o Options) (*Recorder, error) {
	register := promauto.With(o.Registry)
	r := &Recorder{metrics: newMetrics(register, o.Version, o.Config, o.Mode), register: register, clock: o.Clock, traces: o.Traces}
	for _, plugin := range o.Plugins {
		r.rollBacks.WithLabelValues(plugin.Name, failed)
		for _, verdict := range work.Actions() {
			r.swept.WithLabelValues(plugin.Name, verdict, failed)
		}
		for _, c := range plugin.Metrics {
			if err := o.Registry.Register(c); err != nil {
				return nil, fmt.Errorf("registering metrics: %w", err)
			}
		}
	}
	// rate() of Prometheus does not count the first value of a series.
	for _, decision := range binder.Decisions() {
		r.duration.WithLabelValues(decision)
	}
	for _, reason := range webhook.RefusalReasons() {
		r.refused.WithLabelValues(reason)
	}
	return r, nil
}

// Handler creates a server span for each request, under the span of the API server.
func (r *Recorder) Handler(h http.Handler) http.Handler {
	if r.traces == nil {
		return h
	}
	return tracing.WithTracing(h, r.traces.provider, "AdmissionReview")
}

// start begins the span that has these parts as its name. Without tracing, it records nothing, and its name is not built.
func (r *Recorder) start(ctx context.Context, names ...string) (context.Context, trace.Span) {
	if r.traces == nil {
		return ctx, noop.Span{}
	}
	return r.traces.tracer.Start(ctx, strings.TrimSpace(strings.Join(names, " ")))
}

// Engine returns an engine that records the decisions of e, each with a span.
func (r *Recorder) Engine(e webhook.Engine) webhook.Engine { return recorded{Recorder: r, engine: e} }

type recorded struct {
	*Recorder
	engine webhook.Engine
}

// Bind implements webhook.Engine.
func (r recorded) Bind(ctx context.Context, request binder.Request) binder.Decision {
	begin := r.clock.Now()
	ctx, span := r.start(ctx, "Bind")
	defer span.End()
	d := r.engine.Bind(ctx, request)
	kind, plugin := d.Kind(), pluginOf(d.Err)
	if span.IsRecording() {
		describe(span, request.Pod, request.Binding.Target.Name, d.Attempt, plugin)
		span.SetAttributes(decisionAttribute.String(kind), callsAttribute.Int(max(d.Calls, 1)))
		if d.Err != nil {
			span.SetAttributes(reasonAttribute.String(d.Err.Error()))
		}
	}
	if request.DryRun { // An explanation, which any user may ask for.
		return d
	}
	r.decisions.WithLabelValues(kind, plugin).Inc()
	r.duration.WithLabelValues(kind).Observe(r.clock.Since(begin).Seconds())
	if d.Audit != nil {
		r.audited.WithLabelValues(d.Audit.Kind, pluginOf(d.Audit.Err)).Inc()
	}
	for _, c := range d.Conflicts {
		result := "replaced"
		if c.Kept {
			result = "kept"
		}
		r.conflicts.WithLabelValues(c.Mutator, c.Source, result).Inc()
	}
	for _, f := range d.Failures {
		r.failures.WithLabelValues(f.Mutator).Inc()
	}
	if d.RetryAfter == 0 && d.Calls > 0 {
		r.wait.Observe(d.Waited.Seconds())
	}
	return d
}

// pluginOf returns the plugin of an error, or "" without an error.
func pluginOf(err *framework.Error) string {
	if err == nil {
		return ""
	}
	return err.Plugin
}

// Step implements work.Recorder: it measures calls of plugins and creates a span for each
// step.
func (r *Recorder) Step(ctx context.Context, s work.Step) (context.Context, func(error)) {
	begin := r.clock.Now()
	ctx, span := r.start(ctx, s.Name, s.Plugin)
	if span.IsRecording() {
		describe(span, s.Pod, s.Node, s.Attempt, s.Plugin)
	}
	return ctx, func(err error) {
		result := work.Result(err)
		if s.Plugin != "" {
			r.plugins.WithLabelValues(s.Plugin, s.Name, result).Observe(r.clock.Since(begin).Seconds())
		}
		if span.IsRecording() {
			describeResult(span, result, err)
		}
		span.End()
	}
}

// describe sets the attributes of the span of a decision or step. An attempt or a plugin that is empty has no attribute.
func describe(span trace.Span, pod types.NamespacedName, node, attempt, plugin string) {
	span.SetAttributes(semconv.K8SNamespaceName(pod.Namespace), semconv.K8SPodName(pod.Name), semconv.K8SNodeName(node))
	if attempt != "" {
		span.SetAttributes(attemptAttribute.String(attempt))
	}
	if plugin != "" {
		span.SetAttributes(pluginAttribute.String(plugin))
	}
}

// describeResult sets how the step of the span ended. Waiting and rejecting are not failures.
func describeResult(span trace.Span, result string, err error) {
	span.SetAttributes(resultAttribute.String(result))
	switch {
	case err == nil:
	case result == internal:
		span.SetStatus(codes.Error, err.Error())
	default:
		span.SetAttributes(reasonAttribute.String(err.Error()))
	}
}

// ReadLive implements work.Recorder.
func (r *Recorder) ReadLive(kind, reason string) {
	r.reads.WithLabelValues(framework.Binder, kind, reason).Inc()
}

// HoldRefused implements work.Recorder.
func (r *Recorder) HoldRefused() { r.holdsRefused.Inc() }

// AttemptEnded implements work.Recorder.
func (r *Recorder) AttemptEnded(outcome string) { r.attempts.WithLabelValues(outcome).Inc() }

// RolledBack implements work.Recorder.
func (r *Recorder) RolledBack(plugin string, err error) {
	r.rollBacks.WithLabelValues(plugin, resultOf(err)).Inc()
}

// Swept implements work.Recorder.
func (r *Recorder) Swept(plugin, verdict string, err error) {
	r.swept.WithLabelValues(plugin, verdict, resultOf(err)).Inc()
}

// RequestRefused counts a request that the webhook did not read completely.
func (r *Recorder) RequestRefused(reason string) { r.refused.WithLabelValues(reason).Inc() }

// Mutator returns a mutator that measures the calls of m.
func (r *Recorder) Mutator(m mutators.Mutator) mutators.Mutator {
	return &timedMutator{Mutator: m, clock: r.clock, duration: r.mutators.WithLabelValues(m.Name())}
}

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

// Reader returns a reader that counts the reads of the plugin.
func (r *Recorder) Reader(live client.Reader, plugin string) client.Reader {
	return &countedReader{reader: live, plugin: plugin, reads: r.reads}
}

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

func (r *countedReader) count(into runtime.Object) {
	r.reads.WithLabelValues(r.plugin, framework.KindOf(into), readByPlugin).Inc()
}

func resultOf(err error) string {
	if err != nil {
		return failed
	}
	return "done"
}
