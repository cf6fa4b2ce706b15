// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package assembly

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/config/v1alpha1"
	"github.com/prebind/prebind/telemetry"
)

// TestReloader_Read checks that a changed file is applied once. A rejected file is reported once
// and retried until the file has its previous content again.
func TestReloader_Read(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.yaml")
	write := func(content string) { require.NoError(t, os.WriteFile(file, []byte(content), 0o600)) }
	registry := prometheus.NewRegistry()
	recorder, err := telemetry.New(telemetry.Options{Registry: registry, Clock: clock.RealClock{}})
	require.NoError(t, err)
	recorder.ConfigApplied("first", time.Time{})
	value := func(name string) float64 {
		families, err := registry.Gather()
		require.NoError(t, err)
		for _, f := range families {
			if f.GetName() == name {
				m := f.GetMetric()[len(f.GetMetric())-1]
				return m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
		return -1
	}
	recorded, now := events.NewFakeRecorder(100), clocktesting.NewFakeClock(time.Now())
	r := &Reloader{o: ReloadOptions{File: file, Recorder: recorder, Events: recorded, Clock: now}, content: []byte("first")}
	var put []string
	fails := map[string]error{}
	r.apply = func(_ context.Context, content []byte) error {
		put = append(put, string(content))
		return fails[string(content)]
	}
	successful := func() float64 { return value("prebind_config_last_reload_successful") }
	look := func() { r.read(t.Context()) }

	write("first")
	look()
	assert.Empty(t, put, "the content is already in force")

	write("second")
	look()
	look()
	assert.Equal(t, []string{"second"}, put, "a changed file is applied once")

	fails["bad"] = errors.New("line 1\nline 2")
	write("bad")
	look()
	look()
	assert.Equal(t, []string{"second", "bad"}, put, "a rejected file is not retried at once")
	assert.Zero(t, successful())
	require.Len(t, recorded.Events, 1)
	assert.Equal(t, "Warning ConfigurationRefused rejected the new configuration; the previous one stays in force: line 1; line 2", <-recorded.Events)

	now.Step(retryInterval)
	look()
	assert.Len(t, put, 3, "a rejected file is retried after the interval")
	assert.Empty(t, recorded.Events, "a problem is reported once")
	assert.InDelta(t, 1, value("prebind_config_reloads_total"), 0)

	write("second")
	look()
	assert.Len(t, put, 3, "the content is still in force")
	assert.InDelta(t, 1, successful(), 0)

	require.NoError(t, os.Remove(file))
	look()
	assert.Zero(t, successful())
	assert.Contains(t, <-recorded.Events, "no such file")

	write("third")
	look()
	assert.Equal(t, "third", put[len(put)-1])
	assert.InDelta(t, 1, successful(), 0)
}

// A plugin that lacks a kind or a permission is switched on when these appear, without a file too.
func TestReloader_Resume(t *testing.T) {
	s, now := newServer(t), clocktesting.NewFakeClock(time.Now())
	var granted atomic.Bool
	custom, permitted, on := keeping("custom"), keeping("permitted"), keeping("on")
	custom.Requires = []schema.GroupVersionKind{gadgetKind}
	permitted.IfPermitted = true
	permitted.Permissions = func(framework.Arguments) (framework.Permissions, error) {
		return framework.Permissions{Cluster: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"get"}}}}, nil
	}
	built := 0
	build := custom.New
	custom.New = func(h framework.Handle, a framework.Arguments) (framework.PreBinder, error) {
		if built++; built == 1 {
			return nil, errors.New("broken")
		}
		return build(h, a)
	}
	a := newAssemblyAt(t, s, granting(func(p authorizationv1.ResourceAttributes) (bool, error) {
		return p.Resource != "secrets" || granted.Load(), nil
	}), custom, permitted, on)
	c := &v1alpha1.Loaded{PrebindConfiguration: v1alpha1.Default(a.o.Registry.Components())}
	settings, err := a.Settings(t.Context(), c.PrebindConfiguration)
	require.NoError(t, err)
	require.Equal(t, []string{"on"}, namesOf(settings.Plugins))
	a.Applied()
	engine, err := binder.New(binder.Options{
		Cached: a.o.Manager.GetCache(), Live: a.o.Manager.GetAPIReader(), Settings: settings, Replica: "r", Changes: a.Changes,
		Events: events.NewFakeRecorder(1), Clock: now,
	})
	require.NoError(t, err)
	r := NewReloader(ReloadOptions{Assembly: a, Engine: engine, Recorder: a.o.Recorder, Clock: now}, c)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Start(ctx) }()
	// tick lets the Reloader look once, and returns when it has looked.
	tick := func(d time.Duration) []string {
		require.Eventually(t, now.HasWaiters, time.Minute, time.Millisecond)
		now.Step(d)
		require.Eventually(t, now.HasWaiters, time.Minute, time.Millisecond)
		return slices.Sorted(maps.Keys(a.built))
	}
	assert.Equal(t, []string{"on"}, tick(retryInterval))
	granted.Store(true)
	assert.Equal(t, []string{"on"}, tick(readInterval), "it is not time to look")
	assert.Equal(t, []string{"on", "permitted"}, tick(retryInterval))
	first := a.built["permitted"].retired
	s.installed.Store(true)
	assert.Equal(t, []string{"on", "permitted"}, tick(retryInterval), "the plugin fails, and the configuration in force stays")
	assert.Equal(t, "plugin custom: broken", r.resumed.problem)
	assert.Equal(t, []string{"custom", "on", "permitted"}, tick(retryInterval))
	assert.Empty(t, r.resumed.problem)
	assert.Equal(t, []string{"custom", "on", "permitted"}, tick(retryInterval))
	assert.Equal(t, 2, built, "nothing is applied when all plugins are on")
	assert.False(t, isClosed(first), "the plugins that were on stay")
	stop()
	require.NoError(t, <-ended)
}
