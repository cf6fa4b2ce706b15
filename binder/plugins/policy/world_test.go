// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/framework/frameworktest"
	"github.com/prebind/prebind/policy/v1alpha1"
	"github.com/prebind/prebind/test/fakeapi"
)

// world is a running plugin with an API server in memory and a cache that is always up to date. It must stay in one bubble of
// testing/synctest.
type world struct {
	*Plugin
	t       *testing.T
	server  *fakeapi.Server
	api     *fakeapi.Connection
	cluster *frameworktest.Cluster
	watches *watches
	events  *events.FakeRecorder
	leads   atomic.Bool
}

// newWorld starts the plugin with the objects.
func newWorld(t *testing.T, objects ...client.Object) *world {
	t.Helper()
	w := prepareWorld(t, objects...)
	w.begin()
	return w
}

// prepareWorld returns a plugin that does not run yet.
func prepareWorld(t *testing.T, objects ...client.Object) *world {
	t.Helper()
	w := &world{t: t, events: events.NewFakeRecorder(100)}
	w.leads.Store(true)
	r, changed := Registration(), make(signal, 1)
	r.New = func(h framework.Handle, _ framework.Arguments) (framework.Plugin, error) {
		w.watches = &watches{handle: h, selecting: func(context.Context, framework.Selection) error { return nil }}
		h.Events, h.Leads, h.Select, h.Keep = w.events, w.leads.Load, w.watches.Select, w.watches.Keep
		w.Plugin = newPlugin(h, &Arguments{}, newMetrics(), changed)
		return w.Plugin, nil
	}
	w.cluster = frameworktest.New(t, r, nil, objects...)
	w.server = w.cluster.Server
	w.api, _ = w.h.Live.(*fakeapi.Connection)
	w.server.OnChange(func(o client.Object, _ bool) {
		if _, policy := o.(*v1alpha1.BindPolicy); policy {
			changed.handler().OnUpdate(o, o)
		}
	})
	return w
}

// begin starts the plugin, and waits until it has handled all policies.
func (w *world) begin() {
	ctx, cancel := context.WithCancel(w.t.Context())
	var done sync.WaitGroup
	done.Go(func() { _ = w.Start(ctx) })
	w.t.Cleanup(func() { cancel(); done.Wait() })
	synctest.Wait()
}

// put creates a policy or replaces its spec, and waits until it is handled.
func (w *world) put(b *v1alpha1.BindPolicy) {
	if stored, ok := fakeapi.Get(w.server, b); ok && stored.UID == b.UID {
		b.Status = stored.Status
	}
	w.server.Put(b)
	synctest.Wait()
}

// status returns the condition Ready of a policy as "REASON: MESSAGE". It is that of the newest generation.
func (w *world) status(name string) string {
	w.t.Helper()
	b, ok := fakeapi.Get(w.server, &v1alpha1.BindPolicy{ObjectMeta: metav1Named(name)})
	require.True(w.t, ok)
	if len(b.Status.Conditions) == 0 {
		return ""
	}
	assert.Equal(w.t, b.Generation, b.Status.ObservedGeneration)
	return b.Status.Conditions[0].Reason + ": " + b.Status.Conditions[0].Message
}

// used returns the names and generations of the policies in force that can be evaluated.
func (w *world) used() map[string]int64 {
	all := map[string]int64{}
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, g := range w.latest {
		if g.entry.compiled.Err() == nil && len(g.entry.unwatched) == 0 {
			all[name] = g.Generation
		}
	}
	return all
}

// event returns the next event, or an empty string.
func (w *world) event() string {
	select {
	case e := <-w.events.Events:
		return e
	default:
		return ""
	}
}

// watches are the watches of a cluster. They can fail, and note which of them are kept.
type watches struct {
	handle framework.Handle

	mu        sync.Mutex
	selecting func(ctx context.Context, s framework.Selection) error
	kept      sets.Set[string]
}

// Select is framework.Handle.Select.
func (w *watches) Select(ctx context.Context, s framework.Selection) error {
	w.mu.Lock()
	selecting := w.selecting
	w.mu.Unlock()
	if err := selecting(ctx, s); err != nil {
		return err
	}
	return w.handle.Select(ctx, s)
}

// Keep is framework.Handle.Keep.
func (w *watches) Keep(names sets.Set[string]) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.kept = names
	w.handle.Keep(names)
}

// on replaces the reaction to Select.
func (w *watches) on(selecting func(ctx context.Context, s framework.Selection) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.selecting = selecting
}

func (w *watches) keptNames() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return sets.List(w.kept)
}

// policyOf returns the first generation of a policy with the spec in YAML.
func policyOf(t testing.TB, name, spec string) *v1alpha1.BindPolicy {
	t.Helper()
	b := &v1alpha1.BindPolicy{ObjectMeta: metav1Named(name)}
	b.UID, b.Generation = types.UID(name+"-uid"), 1
	require.NoError(t, yaml.UnmarshalStrict([]byte(spec), &b.Spec), "%s", spec)
	return b
}

// next returns the next generation of the policy with another spec.
func next(t testing.TB, b *v1alpha1.BindPolicy, spec string) *v1alpha1.BindPolicy {
	t.Helper()
	n := policyOf(t, b.Name, spec)
	n.Generation = b.Generation + 1
	return n
}

// elapseMinute lets a minute pass in one goroutine.
func elapseMinute() {
	<-time.After(time.Minute)
}

// elapse lets the time pass.
func elapse(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}
