// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package golden

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/cmd/prebind/app"
	"github.com/prebind/prebind/internal/claimed"
	"github.com/prebind/prebind/internal/mutation"
	"github.com/prebind/prebind/internal/notify"
	"github.com/prebind/prebind/internal/work"
	"github.com/prebind/prebind/mutators"
	"github.com/prebind/prebind/test/fakeapi"
	"github.com/prebind/prebind/test/gen"
	"github.com/prebind/prebind/test/unrecorded"
	"github.com/prebind/prebind/webhook"
)

// prebind is the real handler and engine with a few objects. It must stay in one testing/synctest bubble.
type prebind struct {
	server  *fakeapi.Server
	client  *fakeapi.Connection
	engine  *binder.Engine
	handler http.Handler
}

func newPrebind(t *testing.T, s setup, objects []client.Object) *prebind {
	t.Helper()
	server := fakeapi.New(objects...)
	c, changes := server.Connect(), notify.NewHub()
	server.OnChange(func(o client.Object, _ bool) {
		changes.Wake(o)
		// The selections are not known here.
		changes.Wake(nil)
	})
	handle := framework.Handle{
		Cached: c, Live: c, Writer: c, Status: c, Wake: changes.Wake, Clock: clock.RealClock{}, Events: &events.FakeRecorder{}, Namespace: namespace,
		Replicas: func() int { return 1 }, Leads: func() bool { return true },
		Select: func(context.Context, framework.Selection) error { return nil }, Keep: func(sets.Set[string]) {},
	}
	plugins := make([]framework.Plugin, 0, len(s.plugins)+len(s.added))
	for _, p := range s.plugins {
		plugins = append(plugins, p.plugin(t, objects, handle))
		start(t, plugins[len(plugins)-1])
	}
	var chain []mutators.Mutator
	for _, m := range s.mutators {
		chain = append(chain, m.mutator(t))
	}
	all := mutation.NewChain(chain, s.required)
	engine := binder.New(binder.Options{
		Options: work.Options{
			Cached: c, Live: c, Replica: "replica", Changes: changes, Term: func() (int64, bool) { return 0, true },
			Events: events.NewFakeRecorder(100), Recorder: unrecorded.Recorder{}, Clock: clock.RealClock{},
		},
		Settings: binder.Settings{
			Mode: binder.ModeEnforce, Plugins: append(plugins, s.added...), Mutators: all,
			Claimed: func(ctx context.Context, pod *corev1.Pod) ([]framework.Device, error) {
				return claimed.Devices(ctx, c, c, pod)
			},
			Hold: 5 * time.Second, MaxHolds: 10, PreBindTimeout: time.Minute, MaxPreBindTimeout: time.Minute,
		},
	})
	handler := &webhook.Handler{Engine: engine, Ready: func() error { return nil }, Log: logr.Discard(), Clock: clock.RealClock{}}
	return &prebind{server: server, client: c, engine: engine, handler: handler}
}

// plugin creates the plugin like the program does.
func (o on) plugin(t *testing.T, objects []client.Object, h framework.Handle) framework.Plugin {
	t.Helper()
	all := app.RegisteredPlugins()
	i := slices.IndexFunc(all, func(r framework.Registration) bool { return r.Name == o.name })
	require.GreaterOrEqual(t, i, 0, "no plugin %s is registered", o.name)
	r, arguments := all[i], o.arguments
	if arguments == nil && r.Arguments != nil {
		arguments = r.Arguments()
	}
	plugin, err := r.New(h, arguments)
	require.NoError(t, err)
	if r.Selections != nil {
		for _, s := range r.Selections("prebind-system", arguments) {
			synchronize(t, s, objects)
		}
	}
	return plugin
}

// start starts a framework.Starter, and waits until it can decide.
func start(t *testing.T, p framework.Plugin) {
	t.Helper()
	starter, ok := p.(framework.Starter)
	if !ok {
		return
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = starter.Start(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	synctest.Wait()
	require.True(t, starter.HasSynced())
}

// synchronize reports the objects of the selection to its handler, like the initial list of an informer.
func synchronize(t *testing.T, s framework.Selection, objects []client.Object) {
	t.Helper()
	for _, o := range objects {
		if s.Handler == nil || framework.KindOf(o) != framework.KindOf(s.Example) {
			continue
		}
		var trimmed any = o.DeepCopyObject()
		if s.Transform != nil {
			var err error
			trimmed, err = s.Transform(trimmed)
			require.NoError(t, err)
		}
		s.Handler.OnAdd(trimmed, true)
	}
}

// mutator creates the mutator like the program does.
func (o on) mutator(t *testing.T) mutators.Mutator {
	t.Helper()
	all := app.RegisteredMutators()
	i := slices.IndexFunc(all, func(r mutators.Registration) bool { return r.Name == o.name })
	require.GreaterOrEqual(t, i, 0, "no mutator %s is registered", o.name)
	r, arguments := all[i], o.arguments
	if arguments == nil && r.Arguments != nil {
		arguments = r.Arguments()
	}
	mutator, err := r.New(arguments)
	require.NoError(t, err)
	return mutator
}

// reviewOf returns the review that the API server posts for the Binding.
func reviewOf(binding *corev1.Binding, dryRun bool) []byte {
	return gen.Review(binding, "system:serviceaccount:batch:gpu-scheduler", dryRun)
}

// serve posts the body like the API server.
func (p *prebind) serve(t *testing.T, body []byte) *httptest.ResponseRecorder {
	t.Helper()
	ctx := klog.NewContext(t.Context(), logr.Discard())
	request := httptest.NewRequestWithContext(ctx, http.MethodPost, webhook.Path+"?timeout=10s", bytes.NewReader(body))
	request.Header.Set("Content-Type", "application/json")
	response := httptest.NewRecorder()
	p.handler.ServeHTTP(response, request)
	return response
}

// stop stops the engine and its attempts.
func (p *prebind) stop(t *testing.T) {
	t.Helper()
	require.NoError(t, p.engine.Stop(klog.NewContext(context.WithoutCancel(t.Context()), logr.Discard())))
}
