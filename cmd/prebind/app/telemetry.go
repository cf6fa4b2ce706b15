// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"k8s.io/utils/clock"

	"github.com/prebind/prebind/telemetry"
	"github.com/prebind/prebind/webhook"
	"github.com/prebind/prebind/webhook/certificates"
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

// start returns the traces of this replica, or nil without an endpoint.
func (o *tracingOptions) start(ctx context.Context, replica string) (*telemetry.Traces, error) {
	if o.endpoint == "" {
		return nil, nil
	}
	traces, err := telemetry.NewTraces(ctx, telemetry.TracesOptions{Endpoint: o.endpoint, Rate: o.rate, Version: version, Replica: replica})
	if err != nil {
		return nil, fmt.Errorf("--tracing-endpoint: %w", err)
	}
	return traces, nil
}

// newRecorder registers all metrics of the program that are named prebind_….
func newRecorder(registry prometheus.Registerer, certs *certificates.Metrics, traces *telemetry.Traces, plugins ...string) (*telemetry.Recorder, error) {
	r, err := telemetry.New(telemetry.Options{
		Registry: registry, Clock: clock.RealClock{}, Version: version, Plugins: plugins, Refusals: webhook.RefusalReasons(), Traces: traces,
	})
	return r, errors.Join(err, telemetry.Register(registry, certs.Collectors()...))
}

// RegisterMetrics registers every metric of 'prebind serve' that is named prebind_…,
// mostly without values: for the documents and for the tests of alerts and dashboards. A
// collector that is not a metric or vector of Prometheus must show a value of each of
// its metrics, from which their types are known.
func RegisterMetrics(registry prometheus.Registerer) error {
	_, err := newRecorder(registry, certificates.NewMetrics(), nil)
	return err
}
