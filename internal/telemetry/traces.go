// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package telemetry

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/spf13/pflag"
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

// flushTakes is the timeout for sending the last spans when the process ends.
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

// TracesOptions are the flags of tracing. The zero value switches tracing off.
type TracesOptions struct {
	// Endpoint is the host and port of an OpenTelemetry collector: OTLP, gRPC without TLS.
	Endpoint string
	// Rate is the number of binds per million that are traced, in addition to those that
	// the API server traces.
	Rate int32
}

// AddFlags adds the flags to fs, bound to the options.
func (o *TracesOptions) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.Endpoint, "tracing-endpoint", o.Endpoint,
		"Host and port of the OpenTelemetry collector that receives spans (OTLP, gRPC without TLS). Empty disables them.")
	fs.Int32Var(&o.Rate, "tracing-sampling-rate-per-million", o.Rate,
		"Number of binds per million that are traced. Prebind always traces binds that the API server traces.")
}

// Validate returns an error for each problem of the flags.
func (o *TracesOptions) Validate() []error {
	var problems []error
	if _, _, err := net.SplitHostPort(o.Endpoint); o.Endpoint != "" && err != nil {
		problems = append(problems, fmt.Errorf("--tracing-endpoint: must be a host with a port, such as localhost:4317, got %q", o.Endpoint))
	}
	if o.Rate < 0 || o.Rate > 1_000_000 {
		problems = append(problems, fmt.Errorf("--tracing-sampling-rate-per-million: must be from 0 to 1000000, got %d", o.Rate))
	}
	if o.Rate > 0 && o.Endpoint == "" {
		problems = append(problems, errors.New("--tracing-sampling-rate-per-million: requires --tracing-endpoint"))
	}
	return problems
}

// Traces sends spans.
type Traces struct {
	provider tracing.TracerProvider
	tracer   trace.Tracer
}

// NewTraces returns Traces that send spans until Flush, or nil if there is no endpoint. The
// collector can start later.
func NewTraces(ctx context.Context, o TracesOptions, version, replica string) (*Traces, error) {
	if o.Endpoint == "" {
		return nil, nil
	}
	// Log a missing collector once a minute, not for each batch.
	sometimes := rate.Sometimes{Interval: time.Minute}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		sometimes.Do(func() { klog.ErrorS(err, "Dropped spans that could not be sent", "endpoint", o.Endpoint) })
	}))
	provider, err := tracing.NewProvider(ctx, &tracingapi.TracingConfiguration{Endpoint: &o.Endpoint, SamplingRatePerMillion: &o.Rate}, nil,
		[]resource.Option{resource.WithAttributes(
			semconv.ServiceName("prebind"), semconv.ServiceVersion(version), semconv.ServiceInstanceID(replica),
		)})
	if err != nil {
		return nil, fmt.Errorf("--tracing-endpoint: %w", err)
	}
	return &Traces{provider: provider, tracer: provider.Tracer("github.com/prebind/prebind")}, nil
}

// Flush sends the remaining spans within three seconds, even if the context has ended. It does
// nothing for a nil *Traces.
func (t *Traces) Flush(ctx context.Context) {
	if t == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTakes)
	defer cancel()
	if err := t.provider.Shutdown(ctx); err != nil {
		klog.ErrorS(err, "Could not send the last spans")
	}
}
