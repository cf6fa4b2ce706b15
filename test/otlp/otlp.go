// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package otlp receives spans as an OpenTelemetry collector does.
package otlp

import (
	"context"
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
)

// Receiver keeps the spans that are sent to it by OTLP over gRPC.
type Receiver struct {
	collectorv1.UnimplementedTraceServiceServer
	address string

	mu    sync.Mutex
	spans []*tracev1.Span
	// services are the service.name of the resources that sent spans.
	services []string
}

// Receive starts a Receiver, which ends with the test.
func Receive(t *testing.T) *Receiver {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r := &Receiver{address: listener.Addr().String()}
	server := grpc.NewServer()
	collectorv1.RegisterTraceServiceServer(server, r)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		require.NoError(t, <-served)
	})
	return r
}

// Address is host and port.
func (r *Receiver) Address() string { return r.address }

// Export implements the service.
func (r *Receiver) Export(_ context.Context, request *collectorv1.ExportTraceServiceRequest) (*collectorv1.ExportTraceServiceResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, resource := range request.GetResourceSpans() {
		for _, a := range resource.GetResource().GetAttributes() {
			if a.GetKey() == "service.name" {
				r.services = append(r.services, a.GetValue().GetStringValue())
			}
		}
		for _, scope := range resource.GetScopeSpans() {
			r.spans = append(r.spans, scope.GetSpans()...)
		}
	}
	return &collectorv1.ExportTraceServiceResponse{}, nil
}

// Services returns who sent spans; the caller owns the slice.
func (r *Receiver) Services() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Compact(slices.Clone(r.services))
}

// Spans returns those that were received so far, with this value of this attribute;
// an empty key stands for all.
func (r *Receiver) Spans(key, value string) []*tracev1.Span {
	r.mu.Lock()
	defer r.mu.Unlock()
	var found []*tracev1.Span
	for _, s := range r.spans {
		if key == "" || Attribute(s, key) == value {
			found = append(found, s)
		}
	}
	return found
}

// Attribute is the text of a span's attribute; empty if there is none.
func Attribute(s *tracev1.Span, key string) string {
	for _, a := range s.GetAttributes() {
		if a.GetKey() == key {
			return a.GetValue().GetStringValue()
		}
	}
	return ""
}
