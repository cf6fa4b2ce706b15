// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package assembly

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/config/v1alpha1"
	"github.com/prebind/prebind/telemetry"
)

// kept is a plugin that keeps the end of its instance.
type kept struct {
	name    string
	retired <-chan struct{}
}

func (k kept) Name() string { return k.name }

func (kept) PreBind(context.Context, *framework.BindContext) error { return nil }

// limit is the argument of the plugins of these tests.
type limit struct {
	Limit time.Duration `yaml:"limit"`
}

func (*limit) AddFlags(*pflag.FlagSet) {}

func (*limit) Validate() []framework.Problem { return nil }

func keeping(name string) framework.Registration {
	return framework.Registration{
		Name: name, Description: "d", On: true, Arguments: func() framework.Arguments { return &limit{Limit: time.Minute} },
		New: func(h framework.Handle, _ framework.Arguments) (framework.PreBinder, error) {
			return kept{name: name, retired: h.Retired}, nil
		},
	}
}

// newAssembly returns an Assembly whose manager does not run.
func newAssembly(t *testing.T, client kubernetes.Interface, plugins ...framework.Registration) *Assembly {
	t.Helper()
	return newAssemblyAt(t, newServer(t), client, plugins...)
}

func newAssemblyAt(t *testing.T, s *apiServer, client kubernetes.Interface, plugins ...framework.Registration) *Assembly {
	t.Helper()
	r := &Registry{Plugins: plugins}
	mgr, err := NewManager(t.Context(), s.config(), "0", r, "own")
	require.NoError(t, err)
	recorder, err := telemetry.New(telemetry.Options{Registry: prometheus.NewRegistry(), Clock: clock.RealClock{}})
	require.NoError(t, err)
	return New(Options{Manager: mgr, Registry: r, Client: client, Recorder: recorder, Namespace: "own", WaitFor: func(string, func() bool) {}})
}

func namesOf(plugins []framework.PreBinder) []string {
	var names []string
	for _, p := range plugins {
		names = append(names, p.Name())
	}
	return names
}

// Applied ends the waits of the plugins that were replaced, and no others.
func TestApplied(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		change func(c *v1alpha1.PrebindConfiguration)
		// ends contains the plugins whose waits end.
		ends map[string]bool
	}{
		"Unchanged": {reason: "the plugins stay", change: func(*v1alpha1.PrebindConfiguration) {}},
		"Mode":      {reason: "the plugins stay", change: func(c *v1alpha1.PrebindConfiguration) { c.Mode = v1alpha1.ModeAudit }},
		"Off":       {reason: "a is switched off", change: func(c *v1alpha1.PrebindConfiguration) { c.PreBindPlugins = []string{"*", "-a"} }, ends: map[string]bool{"a": true}},
		"Arguments": {reason: "b has new arguments", change: func(c *v1alpha1.PrebindConfiguration) { setLimit(c, "b", time.Second) }, ends: map[string]bool{"b": true}},
		"All":       {reason: "every plugin is switched off", change: func(c *v1alpha1.PrebindConfiguration) { c.PreBindPlugins = nil }, ends: map[string]bool{"a": true, "b": true}},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAssembly(t, granting(func(authorizationv1.ResourceAttributes) (bool, error) { return true, nil }), keeping("a"), keeping("b"))
			before, err := a.plugins(t.Context(), v1alpha1.Default(a.o.Registry.Components()))
			require.NoError(t, err)
			a.Applied()
			c := v1alpha1.Default(a.o.Registry.Components())
			tc.change(c)
			after, err := a.plugins(t.Context(), c)
			require.NoError(t, err)
			for _, p := range before {
				assert.False(t, isRetired(t, p), "%s waits until the settings are in force", p.Name())
			}
			a.Applied()
			for _, p := range before {
				assert.Equal(t, tc.ends[p.Name()], isRetired(t, p), "%s: %s", p.Name(), tc.reason)
			}
			for _, p := range after {
				assert.False(t, isRetired(t, p), "%s is in force", p.Name())
			}
			a.Applied()
			assert.Empty(t, a.retired)
		})
	}
}

func setLimit(c *v1alpha1.PrebindConfiguration, plugin string, d time.Duration) {
	for i := range c.Arguments {
		if c.Arguments[i].Name == plugin {
			c.Arguments[i].Arguments = &limit{Limit: d}
		}
	}
}

func isRetired(t *testing.T, p framework.PreBinder) bool {
	t.Helper()
	k, ok := p.(kept)
	require.True(t, ok)
	select {
	case <-k.retired:
		return true
	default:
		return false
	}
}
