// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package telemetry

import (
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/time/rate"
	"k8s.io/component-base/tracing"
	tracingapi "k8s.io/component-base/tracing/api/v1"
	"k8s.io/klog/v2"
)

// flushTakes is how long the last spans may take to be sent when the process ends.
const flushTakes = 3 * time.Second

// Attributes of spans in addition to the conventional ones of Kubernetes. They are stable.
const (
	attemptAttribute  = attribute.Key("prebind.attempt")
	pluginAttribute   = attribute.Key("prebind.plugin")
	resultAttribute   = attribute.Key("prebind.result")
	reasonAttribute   = attribute.Key("prebind.reason")
	decisionAttribute = attribute.Key("prebind.decision")
	callsAttribute    = attribute.Key("prebind.calls")
)

// TracesOptions say where spans go. All fields are required but Rate.
type TracesOptions struct {
	// Endpoint is the host and port of an OpenTelemetry collector: OTLP, gRPC without TLS.
	Endpoint string
	// Rate is how many binds of a million are traced, beside those that the API server
	// traces.
	Rate int32
	// Version of the program, and ID of this replica.
	Version, Replica string
}

// Traces sends spans.
type Traces struct {
	provider tracing.TracerProvider
	tracer   trace.Tracer
}

// NewTraces returns traces that are sent until Flush. The collector need not be there yet.
func NewTraces(ctx context.Context, o TracesOptions) (*Traces, error) {
	// An absent collector is logged once a minute, not for each batch.
	sometimes := rate.Sometimes{Interval: time.Minute}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		sometimes.Do(func() { klog.ErrorS(err, "Could not send traces, they are dropped", "endpoint", o.Endpoint) })
	}))
	provider, err := tracing.NewProvider(ctx, &tracingapi.TracingConfiguration{Endpoint: &o.Endpoint, SamplingRatePerMillion: &o.Rate}, nil,
		[]resource.Option{resource.WithAttributes(
			semconv.ServiceName("prebind"), semconv.ServiceVersion(o.Version), semconv.ServiceInstanceID(o.Replica),
		)})
	if err != nil {
		return nil, fmt.Errorf("setting up traces: %w", err)
	}
	return &Traces{provider: provider, tracer: provider.Tracer("github.com/prebind/prebind")}, nil
}

// Flush sends what has not been sent yet, within three seconds, even if the context has
// ended. A nil *Traces has nothing to send.
func (t *Traces) Flush(ctx context.Context) {
	if t == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTakes)
	defer cancel()
	if err := t.provider.Shutdown(ctx); err != nil {
		klog.ErrorS(err, "The last traces were not sent")
	}
}
