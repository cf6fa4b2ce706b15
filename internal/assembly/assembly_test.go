// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package assembly

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
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

// limit contains the arguments of the plugins of these tests.
type limit struct {
	Limit metav1.Duration `json:"limit"`
}

func (*limit) AddFlags(*pflag.FlagSet) {}

func (*limit) Validate(*field.Path) field.ErrorList { return nil }

func keeping(name string) framework.Registration {
	return framework.Registration{
		Name: name, Description: "d", On: true, Arguments: func() framework.Arguments { return &limit{Limit: metav1.Duration{Duration: time.Minute}} },
		New: func(framework.Handle, framework.Arguments) (framework.Plugin, error) { return kept{name: name}, nil },
	}
}

// newAssembly returns an Assembly whose manager does not run.
func newAssembly(t *testing.T, plugins ...framework.Registration) *Assembly {
	t.Helper()
	return newAssemblyAt(t, newServer(t), plugins...)
}

func newAssemblyAt(t *testing.T, s *apiServer, plugins ...framework.Registration) *Assembly {
	t.Helper()
	r := &Registry{Plugins: plugins}
	recorder, err := telemetry.New(telemetry.Options{Registry: prometheus.NewRegistry(), Clock: clock.RealClock{}})
	require.NoError(t, err)
	a, err := New(t.Context(), s.config(), Options{Registry: r, Recorder: recorder, Namespace: "own", WaitFor: func(string, func() bool) {}})
	require.NoError(t, err)
	return a
}

// A plugin whose kind the API server does not serve is skipped. The others run.
func TestPlugins_KindNotServed(t *testing.T) {
	claims := keeping("resource-claims")
	claims.Requires = []schema.GroupVersionKind{resourcev1.SchemeGroupVersion.WithKind("ResourceClaim")}
	a := newAssembly(t, claims, keeping("other"))
	plugins, err := a.plugins(t.Context(), configuration.Default(a.o.Registry.Components()))
	require.NoError(t, err)
	require.Len(t, plugins, 1)
	assert.Equal(t, "other", plugins[0].Name())
}

// TestPlugin_HandlersRunAfterNew: a handler can use the plugin.
func TestPlugin_HandlersRunAfterNew(t *testing.T) {
	s := newServer(t)
	s.installed.Store(true)
	plugins := func(t *testing.T, change func(a **Assembly, r *framework.Registration)) error {
		t.Helper()
		var a *Assembly
		r := keeping("test")
		change(&a, &r)
		a = newAssemblyAt(t, s, r)
		_, err := a.plugins(t.Context(), configuration.Default(a.o.Registry.Components()))
		return err
	}
	require.NoError(t, plugins(t, func(a **Assembly, r *framework.Registration) {
		build := r.New
		r.Selections = func(string, framework.Arguments) []framework.Selection { return []framework.Selection{gadgets} }
		r.New = func(h framework.Handle, arguments framework.Arguments) (framework.Plugin, error) {
			assert.Empty(t, (*a).selections.all, "a handler would run before New")
			return build(h, arguments)
		}
	}))
}
