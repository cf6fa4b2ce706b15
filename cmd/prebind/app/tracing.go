// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/spf13/pflag"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/resource"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/time/rate"
	"k8s.io/component-base/tracing"
	tracingapi "k8s.io/component-base/tracing/api/v1"
	"k8s.io/klog/v2"

	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/webhook"
)

// flushTakes is how long the last spans may take to be sent when the process ends.
const flushTakes = 3 * time.Second

// Attributes of spans beside the conventional ones of Kubernetes. They are stable.
const (
	attemptAttribute  = attribute.Key("prebind.attempt")
	pluginAttribute   = attribute.Key("prebind.plugin")
	resultAttribute   = attribute.Key("prebind.result")
	reasonAttribute   = attribute.Key("prebind.reason")
	decisionAttribute = attribute.Key("prebind.decision")
	callsAttribute    = attribute.Key("prebind.calls")
)

// tracingOptions are the flags of tracing.
type tracingOptions struct {
	endpoint string
	rate     int32
}

func (o *tracingOptions) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.endpoint, "tracing-endpoint", o.endpoint,
		"Host and port of an OpenTelemetry collector (OTLP, gRPC without TLS) to send spans to. Without it there are none.")
	fs.Int32Var(&o.rate, "tracing-sampling-rate-per-million", o.rate,
		"How many binds of a million are traced. One that the API server traces is traced in any case.")
}

func (o *tracingOptions) problems() []error {
	var problems []error
	if _, _, err := net.SplitHostPort(o.endpoint); o.endpoint != "" && err != nil {
		problems = append(problems, fmt.Errorf("--tracing-endpoint: %q is no host with a port, such as localhost:4317", o.endpoint))
	}
	if o.rate < 0 || o.rate > 1_000_000 {
		problems = append(problems, fmt.Errorf("--tracing-sampling-rate-per-million: %d is not between 0 and 1000000", o.rate))
	}
	if o.rate > 0 && o.endpoint == "" {
		problems = append(problems, fmt.Errorf("--tracing-sampling-rate-per-million: %d is of no use without --tracing-endpoint", o.rate))
	}
	return problems
}

// traces makes spans of the work on binds. A nil *traces makes none: then whatever is
// given to it to be traced is returned as it is, and costs what it cost before.
type traces struct {
	provider tracing.TracerProvider
	tracer   trace.Tracer
}

// start returns the traces of this replica, or nil where there are to be none. The
// collector need not be there yet.
func (o *tracingOptions) start(ctx context.Context, replica string) (*traces, error) {
	if o.endpoint == "" {
		return nil, nil
	}
	// A collector that is away is told of now and then, not for each batch.
	sometimes := rate.Sometimes{Interval: time.Minute}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		sometimes.Do(func() { klog.ErrorS(err, "Could not send traces, they are dropped", "endpoint", o.endpoint) })
	}))
	provider, err := tracing.NewProvider(ctx, &tracingapi.TracingConfiguration{Endpoint: &o.endpoint, SamplingRatePerMillion: &o.rate}, nil,
		[]resource.Option{resource.WithAttributes(
			semconv.ServiceName("prebind"), semconv.ServiceVersion(version), semconv.ServiceInstanceID(replica),
		)})
	if err != nil {
		return nil, fmt.Errorf("--tracing-endpoint: %w", err)
	}
	return newTraces(provider), nil
}

func newTraces(provider tracing.TracerProvider) *traces {
	return &traces{provider: provider, tracer: provider.Tracer("github.com/prebind/prebind")}
}

// flush sends what has not been sent yet. The context may have ended.
func (t *traces) flush(ctx context.Context) {
	if t == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTakes)
	defer cancel()
	if err := t.provider.Shutdown(ctx); err != nil {
		klog.ErrorS(err, "The last traces were not sent")
	}
}

// handler makes a server span of each review, under the API server's span.
func (t *traces) handler(h http.Handler) http.Handler {
	if t == nil {
		return h
	}
	return tracing.WithTracing(h, t.provider, "AdmissionReview")
}

// engine makes a span of each decision.
func (t *traces) engine(e webhook.Engine) webhook.Engine {
	if t == nil {
		return e
	}
	return &tracedEngine{Engine: e, tracer: t.tracer}
}

// steps makes a span of each step, besides telling the tracker.
func (t *traces) steps(next binder.Tracker) binder.Tracker {
	if t == nil {
		return next
	}
	return &tracedSteps{Tracker: next, tracer: t.tracer}
}

type tracedEngine struct {
	webhook.Engine
	tracer trace.Tracer
}

// Bind implements webhook.Engine.
func (e *tracedEngine) Bind(ctx context.Context, r binder.Request) binder.Decision {
	ctx, span := e.tracer.Start(ctx, "Bind")
	defer span.End()
	d := e.Engine.Bind(ctx, r)
	if !span.IsRecording() {
		return d
	}
	span.SetAttributes(
		semconv.K8SNamespaceName(r.Pod.Namespace), semconv.K8SPodName(r.Pod.Name), semconv.K8SNodeName(r.Binding.Target.Name),
		decisionAttribute.String(d.Kind()), callsAttribute.Int(max(d.Calls, 1)),
	)
	if d.Attempt != "" {
		span.SetAttributes(attemptAttribute.String(d.Attempt))
	}
	if d.Err != nil {
		span.SetAttributes(pluginAttribute.String(d.Err.Plugin), reasonAttribute.String(d.Err.Error()))
	}
	return d
}

type tracedSteps struct {
	binder.Tracker
	tracer trace.Tracer
}

// Step implements binder.Tracker.
func (t *tracedSteps) Step(ctx context.Context, s binder.Step) (context.Context, func(error)) {
	ctx, done := t.Tracker.Step(ctx, s)
	name := s.Name
	if s.Plugin != "" {
		name += " " + s.Plugin
	}
	ctx, span := t.tracer.Start(ctx, name)
	if !span.IsRecording() {
		return ctx, done
	}
	span.SetAttributes(semconv.K8SNamespaceName(s.Pod.Namespace), semconv.K8SPodName(s.Pod.Name), semconv.K8SNodeName(s.Node))
	if s.Plugin != "" {
		span.SetAttributes(pluginAttribute.String(s.Plugin))
	}
	if s.Attempt != "" {
		span.SetAttributes(attemptAttribute.String(s.Attempt))
	}
	return ctx, func(err error) {
		done(err)
		defer span.End()
		result := binder.Result(err)
		span.SetAttributes(resultAttribute.String(result))
		switch {
		case err == nil:
		case result == string(framework.KindInternal):
			span.SetStatus(codes.Error, err.Error())
		default:
			// To wait or to refuse is no failure.
			span.SetAttributes(reasonAttribute.String(err.Error()))
		}
	}
}
