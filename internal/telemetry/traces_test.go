// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package telemetry

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/work"
	"github.com/prebind/prebind/test/gen"
	"github.com/prebind/prebind/test/otlp"
)

// bindOnce records the steps of a bind whose attempt continues after the call, until release
// is closed.
type bindOnce struct {
	recorder *Recorder
	release  chan struct{}
	over     chan struct{}
}

// Bind implements webhook.Engine.
func (b *bindOnce) Bind(ctx context.Context, r binder.Request) binder.Decision {
	step := func(ctx context.Context, name, plugin, attempt string) (context.Context, func(error)) {
		return b.recorder.Step(ctx, work.Step{Name: name, Plugin: plugin, Pod: r.Pod, Node: "node-a", Attempt: attempt})
	}
	_, end := step(ctx, work.StepPreFlight, "device", "a-1")
	end(nil)
	attempt, ended := step(context.WithoutCancel(ctx), work.StepHold, "", "a-1")
	go func() {
		defer close(b.over)
		<-b.release
		_, end := step(attempt, work.StepPreBind, "device", "a-1")
		end(errors.New("boom"))
		ended(framework.Refuse(framework.Object{}, "no"))
	}()
	err := framework.NotYet(framework.Object{}, "waiting for the device")
	err.Plugin = "device"
	return binder.Decision{Err: err, Attempt: "a-1", Calls: 1}
}

// recording returns a Recorder that sends its spans to the endpoint.
func recording(ctx context.Context, t testing.TB, endpoint string, rate int32) *Recorder {
	t.Helper()
	traces, err := NewTraces(ctx, TracesOptions{Endpoint: endpoint, Rate: rate}, "v1", "replica-1")
	require.NoError(t, err)
	r, err := New(Options{Registry: prometheus.NewRegistry(), Clock: clock.RealClock{}, Traces: traces})
	require.NoError(t, err)
	return r
}

// traced returns the spans that a collector receives for one bind under a traceparent.
func traced(t *testing.T, rate int32, traceparent string) map[string]*otlp.Span {
	t.Helper()
	receiver := otlp.Receive(t)
	recorder := recording(t.Context(), t, receiver.Address(), rate)
	b := &bindOnce{recorder: recorder, release: make(chan struct{}), over: make(chan struct{})}
	h := recorder.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		recorder.Engine(b).Bind(r.Context(), binder.Request{
			Pod: types.NamespacedName{Namespace: "shop", Name: "web"}, Binding: gen.Binding(gen.Pod("web"), "node-a"),
		})
	}))
	ctx, cancel := context.WithCancel(t.Context())
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/mutate-pods-binding", http.NoBody)
	r.Header.Set("Traceparent", traceparent)
	r.Pattern = "/mutate-pods-binding" // As http.ServeMux, which names the span.
	h.ServeHTTP(httptest.NewRecorder(), r)
	cancel()
	// The call has an answer, and the attempt continues.
	close(b.release)
	<-b.over
	recorder.traces.Flush(ctx)
	spans := map[string]*otlp.Span{}
	for _, s := range receiver.Spans("", "") {
		assert.NotContains(t, spans, s.Name)
		spans[s.Name] = s
	}
	if len(spans) > 0 {
		assert.Equal(t, []string{"prebind"}, receiver.Services())
	}
	return spans
}

func TestTracing_Spans(t *testing.T) {
	const trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	spans := traced(t, 0, "00-"+trace+"-"+parent+"-01")
	require.Len(t, spans, 5, "%v", spans)
	under := map[string]string{"POST /mutate-pods-binding": "", "Bind": "POST /mutate-pods-binding", "PreFlight device": "Bind", "Hold": "Bind", "PreBind device": "Hold"}
	for name, above := range under {
		s := spans[name]
		require.NotNil(t, s, name)
		assert.Equal(t, trace, s.TraceID, "%s is in the trace of the API server", name)
		if above == "" {
			assert.Equal(t, parent, s.ParentID, "the parent is the span of the API server")
			assert.True(t, s.Server, "the span is a server span")
			continue
		}
		assert.Equal(t, spans[above].ID, s.ParentID, "%s is part of %s", name, above)
		assert.Equal(t, "shop", s.Attributes["k8s.namespace.name"], name)
		assert.Equal(t, "web", s.Attributes["k8s.pod.name"], name)
		assert.Equal(t, "node-a", s.Attributes["k8s.node.name"], name)
		assert.Equal(t, "a-1", s.Attributes["prebind.attempt"], name)
	}
	assert.Equal(t, "device", spans["PreBind device"].Attributes["prebind.plugin"])
	assert.True(t, spans["PreBind device"].Failed, "an internal error fails the span")
	assert.Equal(t, "ok", spans["PreFlight device"].Attributes["prebind.result"])
	assert.Equal(t, "refused", spans["Hold"].Attributes["prebind.result"])
	assert.False(t, spans["Hold"].Failed, "a rejection is not a failure")
	assert.Equal(t, "waiting", spans["Bind"].Attributes["prebind.decision"])
	assert.Equal(t, "device: waiting for the device", spans["Bind"].Attributes["prebind.reason"])
}

func TestTracing_Sampling(t *testing.T) {
	cases := map[string]struct {
		reason      string
		rate        int32
		traceparent string
		want        int
	}{
		"NotAsked": {reason: "neither the API server nor the rate samples the bind", want: 0},
		"Rate":     {reason: "the rate samples the bind", rate: 1_000_000, want: 5},
		"ParentDoesNot": {
			reason: "the API server decided not to sample the bind", rate: 1_000_000,
			traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00", want: 0,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) { assert.Len(t, traced(t, tc.rate, tc.traceparent), tc.want, tc.reason) })
	}
}

// TestTracing_MissingCollector checks that a missing collector does not delay binds.
func TestTracing_MissingCollector(t *testing.T) {
	recorder := recording(t.Context(), t, "127.0.0.1:1", 1_000_000)
	b := &bindOnce{recorder: recorder, release: make(chan struct{}), over: make(chan struct{})}
	recorder.Engine(b).Bind(t.Context(), binder.Request{Binding: gen.Binding(gen.Pod("web"), "node-a")})
	close(b.release)
	<-b.over
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	recorder.traces.Flush(ctx)
}

func TestTracesOptions_Validate(t *testing.T) {
	cases := map[string]struct {
		reason string
		o      TracesOptions
		says   string
	}{
		"Off":         {reason: "tracing is off by default"},
		"On":          {reason: "binds that the API server traces are traced", o: TracesOptions{Endpoint: "localhost:4317"}},
		"NoPort":      {reason: "the endpoint must have a port", o: TracesOptions{Endpoint: "localhost"}, says: "--tracing-endpoint: "},
		"TooMuch":     {reason: "the rate must not exceed a million", o: TracesOptions{Endpoint: "localhost:4317", Rate: 1_000_001}, says: "--tracing-sampling-rate-per-million: "},
		"Negative":    {reason: "the rate must not be negative", o: TracesOptions{Endpoint: "localhost:4317", Rate: -1}, says: "--tracing-sampling-rate-per-million: "},
		"RateForNone": {reason: "a rate requires an endpoint", o: TracesOptions{Rate: 1}, says: "--tracing-endpoint"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			err := errors.Join(tc.o.Validate()...)
			if tc.says == "" {
				assert.NoError(t, err, tc.reason)
				return
			}
			assert.ErrorContains(t, err, tc.says, tc.reason)
		})
	}
}
