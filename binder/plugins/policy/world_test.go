// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
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
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/framework/frameworktest"
	"github.com/prebind/prebind/internal/notify"
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
	stop    func()
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
	w := &world{t: t, server: fakeapi.New(objects...), events: events.NewFakeRecorder(100)}
	w.leads.Store(true)
	hub, changed := notify.NewHub(), make(signal, 1)
	w.watches = &watches{hub: hub, all: map[string]framework.Selection{}, selecting: func(context.Context, framework.Selection) error { return nil }}
	w.server.OnChange(func(o client.Object, _ bool) {
		hub.Wake(o)
		if _, policy := o.(*v1alpha1.BindPolicy); policy {
			changed.handler().OnUpdate(o, o)
		}
		w.watches.changed(o)
	})
	w.api = w.server.Connect()
	w.Plugin = newPlugin(framework.Handle{
		Cached: w.server.Cache(), Live: w.api, Writer: w.api, Status: w.api, Wake: hub.Wake, Clock: clock.RealClock{}, Events: w.events,
		Select: w.watches.Select, Keep: w.watches.Keep, Leads: w.leads.Load,
	}, &Arguments{}, newMetrics(), changed)
	w.cluster = frameworktest.Around(t, w.server, hub, w.h, w.Plugin)
	return w
}

// begin starts the plugin, and waits until it has handled all policies.
func (w *world) begin() {
	ctx, cancel := context.WithCancel(w.t.Context())
	var done sync.WaitGroup
	done.Go(func() { _ = w.Start(ctx) })
	w.stop = func() { cancel(); done.Wait() }
	w.t.Cleanup(w.stop)
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

// watches deliver all objects at once.
type watches struct {
	hub *notify.Hub

	mu        sync.Mutex
	selecting func(ctx context.Context, s framework.Selection) error
	all       map[string]framework.Selection
	kept      sets.Set[string]
}

// Select is framework.Handle.Select.
func (w *watches) Select(ctx context.Context, s framework.Selection) error {
	w.mu.Lock()
	selecting := w.selecting
	w.mu.Unlock()
	if err := cmp.Or(s.Check(), selecting(ctx, s)); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all[s.Name] = s
	return nil
}

// Keep is framework.Handle.Keep.
func (w *watches) Keep(names sets.Set[string]) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.kept = names
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

func (w *watches) changed(o client.Object) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.all {
		if framework.KindOf(s.Example) == framework.KindOf(o) {
			w.hub.Changed(notify.Selected(s, s.ValueOf(o)))
		}
	}
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
