// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package app

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/configuration"
	"github.com/prebind/prebind/internal/mutation"
	"github.com/prebind/prebind/internal/notify"
	"github.com/prebind/prebind/internal/telemetry"
	"github.com/prebind/prebind/internal/work"
	"github.com/prebind/prebind/mutators"
	"github.com/prebind/prebind/test/gen"
	"github.com/prebind/prebind/test/unrecorded"
	prebindwebhook "github.com/prebind/prebind/webhook"
)

// BenchmarkAdmission measures the cost of one review, from the bytes of the request to
// those of the answer. It compares Prebind in its default configuration with two handlers of
// controller-runtime: one does nothing, and one adds a constant annotation. It runs each with
// and without metrics.
//
//	make bench
func BenchmarkAdmission(b *testing.B) {
	pod := benchPod()
	body := gen.Review(gen.Binding(pod, "node-a", gen.UID(pod.UID)), "system:kube-scheduler", false)
	for _, v := range admissionVariants(b) {
		b.Run("webhook="+v.name, func(b *testing.B) {
			w := &discarding{header: http.Header{}}
			request, read := reviewRequest(b.Context(), body), bytes.NewReader(body)
			b.ReportAllocs()
			before := processorTime(b)
			for b.Loop() {
				w.reset()
				read.Reset(body)
				request.Body = io.NopCloser(read)
				v.handler.ServeHTTP(w, request)
				if w.code != http.StatusOK || w.size == 0 {
					b.Fatalf("answered %d with %d bytes", w.code, w.size)
				}
			}
			// On a busy machine, CPU time varies less than elapsed time.
			b.ReportMetric(float64((processorTime(b)-before).Nanoseconds())/float64(b.N), "cpu-ns/op")
		})
	}
}

// processorTime returns the CPU time that this process has used.
func processorTime(tb testing.TB) time.Duration {
	tb.Helper()
	var used syscall.Rusage
	require.NoError(tb, syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// admissionVariant is a handler that the benchmark compares.
type admissionVariant struct {
	name    string
	handler http.Handler
}

func admissionVariants(tb testing.TB) []admissionVariant {
	tb.Helper()
	nothing := admission.HandlerFunc(func(context.Context, admission.Request) admission.Response { return admission.Allowed("") })
	constant := admission.HandlerFunc(func(context.Context, admission.Request) admission.Response {
		return admission.Patched("", webhook.JSONPatchOp{
			Operation: "add", Path: "/metadata/annotations", Value: map[string]string{"bench.prebind.dev/constant": "1"},
		})
	})
	standalone := func(h admission.Handler, path string) http.Handler {
		handler, err := admission.StandaloneWebhook(&admission.Webhook{Handler: h}, admission.StandaloneOptions{Logger: logr.Discard(), MetricsPath: path})
		require.NoError(tb, err)
		return handler
	}
	bare, measured := benchHandlers(tb)
	return []admissionVariant{
		{"nothing", standalone(nothing, "/bench-nothing")},
		{"nothing-bare", standalone(nothing, "")},
		{"constant", standalone(constant, "/bench-constant")},
		{"constant-bare", standalone(constant, "")},
		{"prebind", measured},
		{"prebind-bare", bare},
	}
}

// benchHandlers returns Prebind's handler without and with metrics.
func benchHandlers(tb testing.TB) (bare, measured http.Handler) {
	tb.Helper()
	registry := prometheus.NewRegistry()
	recorder, err := telemetry.New(telemetry.Options{Registry: registry, Clock: clock.RealClock{}})
	require.NoError(tb, err)
	untimed := func(m mutators.Mutator) mutators.Mutator { return m }
	engine := benchEngine(tb, untimed, unrecorded.Recorder{})
	handlerOf := func(e prebindwebhook.Engine) http.Handler {
		return &prebindwebhook.Handler{Engine: e, Ready: func() error { return nil }, Log: klog.Background(), Clock: clock.RealClock{}}
	}
	return handlerOf(engine), handlerOf(recorder.Engine(benchEngine(tb, recorder.Mutator, recorder)))
}

// benchEngine returns an engine with the default configuration.
func benchEngine(tb testing.TB, timed func(mutators.Mutator) mutators.Mutator, recorder work.Recorder) *binder.Engine {
	tb.Helper()
	registry := newRegistry()
	s := configuration.Default(registry)
	world, changes := benchWorld(), notify.NewHub()
	var chain []mutators.Mutator
	for _, m := range s.SelectedMutators() {
		built, err := m.New(s.Arguments.Of(m.Name))
		require.NoError(tb, err)
		chain = append(chain, timed(built))
	}
	selectedPlugins := s.SelectedPlugins()
	require.Len(tb, selectedPlugins, 5, "the plugins that are on by default")
	var plugins []framework.Plugin
	for _, p := range selectedPlugins {
		built, err := p.New(framework.Handle{
			Cached: world, Live: world, Writer: world, Status: world, Wake: changes.Wake, Clock: clock.RealClock{},
			Namespace: "prebind-system",
		}, s.Arguments.Of(p.Name))
		require.NoError(tb, err)
		plugins = append(plugins, built)
	}
	mutate := mutation.NewChain(chain, nil)
	e := binder.New(binder.Options{
		Options: work.Options{
			Cached: world, Live: world, Replica: "replica", Changes: changes, Term: func() (int64, bool) { return 0, true },
			Events: events.NewFakeRecorder(1), Recorder: recorder, Clock: clock.RealClock{},
		},
		Settings: binder.Settings{
			Mode: s.Mode, Mutators: mutate, Plugins: plugins, Hold: s.Budgets.Hold.Duration, MaxHolds: s.Budgets.MaxHolds,
			PreBindTimeout: s.Budgets.PreBindTimeout.Duration, MaxPreBindTimeout: s.Budgets.MaxPreBindTimeout.Duration,
		},
	})
	tb.Cleanup(func() { assert.NoError(tb, e.Stop(context.WithoutCancel(tb.Context()))) })
	return e
}

// benchPod returns a typical pod of a Deployment. It has no volumes to prepare.
func benchPod() *corev1.Pod {
	return gen.Pod("web-6d4cf56db6-x7k2p", gen.InNamespace("shop"), gen.UID("b8b1f2a6-5b7b-4a83-9d6a-93c4a3a3f7d1"), gen.Version("123456"),
		gen.Label("app.kubernetes.io/name", "web"), gen.Label("pod-template-hash", "6d4cf56db6"),
		gen.Annotation("kubectl.kubernetes.io/restartedAt", "2026-01-01T00:00:00Z"),
		gen.OwnedBy("ReplicaSet", "web-6d4cf56db6", "8a2d"), gen.EmptyDir("tmp"), gen.NodeSelector(corev1.LabelTopologyZone, "zone-a"))
}

func benchWorld() *memory {
	node := gen.Node("node-a", gen.Zone("zone-a"), gen.Region("region-1"), gen.Ready(110), gen.UID("0c5a"))
	m := &memory{pods: map[client.ObjectKey]*corev1.Pod{}, nodes: map[string]*corev1.Node{node.Name: node}}
	pod := benchPod()
	m.pods[client.ObjectKeyFromObject(pod)] = pod
	return m
}

func reviewRequest(ctx context.Context, body []byte) *http.Request {
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, prebindwebhook.Path+"?timeout=10s", bytes.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	return r
}

// discarding is a ResponseWriter that only counts bytes.
type discarding struct {
	header     http.Header
	code, size int
}

func (d *discarding) reset()              { clear(d.header); d.code, d.size = http.StatusOK, 0 }
func (d *discarding) Header() http.Header { return d.header }
func (d *discarding) WriteHeader(c int)   { d.code = c }
func (d *discarding) Write(p []byte) (int, error) {
	d.size += len(p)
	return len(p), nil
}

// memory is a read-only client. Like the cache of informers, it reads pods and nodes from a map and
// returns shallow copies.
type memory struct {
	client.Client
	pods  map[client.ObjectKey]*corev1.Pod
	nodes map[string]*corev1.Node
}

// Get implements client.Reader.
func (m *memory) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	switch into := into.(type) {
	case *corev1.Pod:
		if pod := m.pods[key]; pod != nil {
			*into = *pod
			return nil
		}
	case *corev1.Node:
		if node := m.nodes[key.Name]; node != nil {
			*into = *node
			return nil
		}
	}
	return apierrors.NewNotFound(schema.GroupResource{Resource: fmt.Sprintf("%T", into)}, key.Name)
}
