// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package otlp receives spans as an OpenTelemetry collector does: by OTLP over gRPC.
package otlp

import (
	"context"
	"encoding/hex"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
)

// Span is a span as far as tests look at it.
type Span struct {
	Name string
	// TraceID, ID and ParentID are hexadecimal. ParentID is empty for a root.
	TraceID, ID, ParentID string
	// Server says that the kind is SPAN_KIND_SERVER, Failed that the status is an error.
	Server, Failed bool
	Start, End     time.Time
	// Attributes are those with a text as value.
	Attributes map[string]string
}

// Receiver keeps the spans that it receives. It is safe for concurrent use.
type Receiver struct {
	collector.UnimplementedTraceServiceServer
	address string

	mu    sync.Mutex
	spans []*Span
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
	collector.RegisterTraceServiceServer(server, r)
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

// Export implements the trace service.
func (r *Receiver) Export(_ context.Context, request *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, of := range request.GetResourceSpans() {
		if name := texts(of.GetResource().GetAttributes())["service.name"]; name != "" {
			r.services = append(r.services, name)
		}
		for _, scope := range of.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				r.spans = append(r.spans, &Span{
					Name: s.GetName(), TraceID: hex.EncodeToString(s.GetTraceId()), ID: hex.EncodeToString(s.GetSpanId()), ParentID: hex.EncodeToString(s.GetParentSpanId()),
					Server: s.GetKind() == trace.Span_SPAN_KIND_SERVER, Failed: s.GetStatus().GetCode() == trace.Status_STATUS_CODE_ERROR,
					Start: at(s.GetStartTimeUnixNano()), End: at(s.GetEndTimeUnixNano()), Attributes: texts(s.GetAttributes()),
				})
			}
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

func at(nanoseconds uint64) time.Time { return time.Unix(0, int64(nanoseconds)) } //nolint:gosec // It fits until the year 2262.

func texts(attributes []*common.KeyValue) map[string]string {
	found := map[string]string{}
	for _, a := range attributes {
		found[a.GetKey()] = a.GetValue().GetStringValue()
	}
	return found
}

// Services returns who sent spans; the caller owns the slice.
func (r *Receiver) Services() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Compact(slices.Clone(r.services))
}

// Spans returns those that were received so far, with this value of this attribute;
// an empty key stands for all.
func (r *Receiver) Spans(key, value string) []*Span {
	r.mu.Lock()
	defer r.mu.Unlock()
	var found []*Span
	for _, s := range r.spans {
		if key == "" || s.Attributes[key] == value {
			found = append(found, s)
		}
	}
	return found
}
