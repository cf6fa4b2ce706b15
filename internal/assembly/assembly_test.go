// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package assembly

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/configuration"
	"github.com/prebind/prebind/internal/telemetry"
)

// kept is a plugin that does nothing.
type kept struct{ name string }

func (k kept) Name() string { return k.name }

func (kept) PreFlight(*framework.BindContext) (framework.Verdict, error) {
	return framework.Verdict{}, nil
}

func keeping(name string) framework.Registration {
	return framework.Registration{
		Name: name, Description: "d", On: true,
		New: func(framework.Handle, framework.Arguments) (framework.Plugin, error) { return kept{name: name}, nil },
	}
}

// newAssemblyAt returns an Assembly whose manager does not run.
func newAssemblyAt(t *testing.T, s *apiServer, plugins ...framework.Registration) *Assembly {
	t.Helper()
	recorder, err := telemetry.New(telemetry.Options{Registry: prometheus.NewRegistry(), Clock: clock.RealClock{}})
	require.NoError(t, err)
	a, err := New(t.Context(), s.config(), Options{
		Registry: &configuration.Registry{Plugins: plugins}, Recorder: recorder, Namespace: "own",
		WaitFor: func(string, func() bool) {}, Leads: func() bool { return true },
	})
	require.NoError(t, err)
	return a
}

// Requests have the time limit of the configuration, which would end watches.
func TestNew_Timeout(t *testing.T) {
	config := newServer(t).config()
	config.Timeout = time.Minute
	a, err := New(t.Context(), config, Options{Registry: &configuration.Registry{}})
	require.NoError(t, err)
	assert.Equal(t, time.Minute, a.GetHTTPClient().Timeout)
	assert.Zero(t, a.source.HTTP.Timeout)
	assert.Zero(t, a.source.Config.Timeout)
}

// A plugin whose kind the API server does not serve is skipped. The others run.
func TestPlugins_KindNotServed(t *testing.T) {
	claims := keeping("resource-claims")
	claims.Requires = []schema.GroupVersionKind{resourcev1.SchemeGroupVersion.WithKind("ResourceClaim")}
	a := newAssemblyAt(t, newServer(t), claims, keeping("other"))
	plugins, err := a.plugins(configuration.Default(a.o.Registry))
	require.NoError(t, err)
	require.Len(t, plugins, 1)
	assert.Equal(t, "other", plugins[0].Name())
}

// A kind of Prebind comes with the manifests of its plugin, and can be served some seconds later. A replica whose configuration names the plugin
// must not run without it.
func TestPlugins_OwnKindNotServed(t *testing.T) {
	policy := keeping("policy")
	policy.Requires = []schema.GroupVersionKind{{Group: "policy.prebind.dev", Version: "v1alpha1", Kind: "BindPolicy"}}
	s := newServer(t)
	a := newAssemblyAt(t, s, policy)
	c := configuration.Default(a.o.Registry)
	plugins, err := a.plugins(c)
	require.NoError(t, err)
	assert.Empty(t, plugins, "the default omits it")

	s.installed.Store(true)
	policy.Requires = append([]schema.GroupVersionKind{newGadget("", "", "").GroupVersionKind()}, policy.Requires...)
	upgraded := newAssemblyAt(t, s, policy)
	_, err = upgraded.plugins(configuration.Default(upgraded.o.Registry))
	assert.ErrorContains(t, err, "plugin policy: the API server does not serve policy", "an upgrade installs another kind")

	c.PreBindPlugins = []string{"*", "policy"}
	_, err = a.plugins(c)
	assert.ErrorContains(t, err, "plugin policy: the API server does not serve policy.prebind.dev/v1alpha1, Kind=BindPolicy")
}

// TestPlugin_HandlersRunAfterNew: a handler can use the plugin.
func TestPlugin_HandlersRunAfterNew(t *testing.T) {
	s := newServer(t)
	s.installed.Store(true)
	var a *Assembly
	r := keeping("test")
	build := r.New
	r.Selections = func(string, framework.Arguments) []framework.Selection { return []framework.Selection{gadgets} }
	r.New = func(h framework.Handle, arguments framework.Arguments) (framework.Plugin, error) {
		assert.Empty(t, a.selections.all, "a handler would run before New")
		return build(h, arguments)
	}
	a = newAssemblyAt(t, s, r)
	configured(t, a)
}

// started is a plugin with a goroutine of its own.
type started struct {
	kept
	synced atomic.Bool
	began  chan struct{}
	// fail ends Start with an error.
	fail chan error
}

func (s *started) Start(ctx context.Context) error {
	close(s.began)
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-s.fail:
		return err
	}
}

func (s *started) HasSynced() bool { return s.synced.Load() }

// starts returns the plugin test and its registration.
func starts() (*started, framework.Registration) {
	s := &started{kept: kept{name: "test"}, began: make(chan struct{}), fail: make(chan error, 1)}
	r := keeping(s.name)
	r.New = func(framework.Handle, framework.Arguments) (framework.Plugin, error) { return s, nil }
	return s, r
}

// The plugin starts when its selections have all objects, and readiness waits for it.
func TestStarter(t *testing.T) {
	server := newServer(t)
	server.installed.Store(true)
	p, r := starts()
	r.Selections = func(string, framework.Arguments) []framework.Selection {
		return []framework.Selection{{Name: "test/gadgets", Example: newGadget("", "", ""), Handler: toolscache.ResourceEventHandlerFuncs{AddFunc: func(any) {
			select {
			case <-p.began:
				t.Error("the plugin has started before")
			default:
			}
		}}}}
	}
	server.gadgets = append(server.gadgets, newGadget("shop", "a", "r1"), newGadget("shop", "b", "r1"))
	a := newAssemblyAt(t, server, r)
	var waits []func() bool
	a.o.WaitFor = func(_ string, synced func() bool) { waits = append(waits, synced) }
	configured(t, a)
	select {
	case <-p.began:
		t.Error("its caches do not run yet")
	default:
	}
	run(t, a)
	<-p.began
	require.Len(t, waits, 2)
	assert.True(t, waits[0](), "the cache, its notifications and the handler")
	assert.False(t, waits[1](), "the plugin")
	p.synced.Store(true)
	assert.True(t, waits[1]())
	assert.Len(t, namesIn(t, a.Cached(), framework.Selection{Name: "test/gadgets"}, ""), 2)
}

// If Start of a plugin fails, the process ends.
func TestStarter_Fails(t *testing.T) {
	p, r := starts()
	a := newAssemblyAt(t, newServer(t), r)
	configured(t, a)
	broken := errors.New("broken")
	p.fail <- broken
	err := a.Start(t.Context())
	require.ErrorIs(t, err, broken)
	assert.ErrorContains(t, err, "plugin test")
}

var resources = schema.GroupResource{Resource: "persistentvolumes"}

// A rejected watch has a record until it succeeds.
func TestDenied(t *testing.T) {
	forbidden := apierrors.NewForbidden(resources, "", errors.New(`User "prebind" cannot list resource "persistentvolumes"`))
	var lists, watches error
	w := &selection{user: "PreBind plugin volumebinding"}
	lw, _ := judged(&toolscache.ListWatch{
		ListWithContextFunc:  func(context.Context, metav1.ListOptions) (runtime.Object, error) { return nil, lists },
		WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) { return nil, watches },
	}, w.reject)
	// run lists and watches once.
	run := func(listFails, watchFails error) error {
		lists, watches = listFails, watchFails
		_, err := lw.ListWithContext(t.Context(), metav1.ListOptions{})
		if assert.ErrorIs(t, err, lists); lists == nil {
			_, err = lw.WatchWithContext(t.Context(), metav1.ListOptions{})
			assert.ErrorIs(t, err, watches)
		}
		return w.denied()
	}
	require.NoError(t, w.denied())
	err := run(forbidden, nil)
	require.ErrorIs(t, err, forbidden)
	for _, words := range []string{"PreBind plugin volumebinding: ", "cannot list resource", "apply its role of this version, or switch it off"} {
		require.ErrorContains(t, err, words)
	}
	assert.NotContains(t, err.Error(), "\n")
	require.EqualError(t, run(forbidden, nil), err.Error())
	missing := apierrors.NewNotFound(resources, "")
	require.ErrorContains(t, run(missing, nil), "the API server does not serve a kind")
	require.NoError(t, run(nil, nil), "the permission is granted")
	require.NoError(t, run(errors.New("unavailable"), nil), "it can be over soon")
	for range maxFailures {
		err = run(errors.New("unavailable"), nil)
	}
	require.ErrorContains(t, err, "the API server serves no objects", "binds are decided on old objects")
	require.NoError(t, run(nil, nil))
	require.ErrorIs(t, run(forbidden, nil), forbidden, "the permission is lost")
	require.ErrorIs(t, run(nil, forbidden), forbidden, "a list without a watch is not enough")
	require.NoError(t, run(nil, nil))
}
