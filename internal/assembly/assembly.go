// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package assembly builds the mutators and plugins that a configuration switches on, and adds their
// caches to the manager.
package assembly

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/claimed"
	"github.com/prebind/prebind/internal/configuration"
	"github.com/prebind/prebind/internal/mutation"
	"github.com/prebind/prebind/internal/notify"
	"github.com/prebind/prebind/internal/telemetry"
	"github.com/prebind/prebind/mutators"
)

// Options are the options of an Assembly. All fields are required.
type Options struct {
	Registry *configuration.Registry
	Recorder *telemetry.Recorder
	// Namespace is the namespace of Prebind's own objects.
	Namespace string
	// Replicas is framework.Handle.Replicas.
	Replicas func() int
	// WaitFor is called with each kind that is added to the cache.
	WaitFor func(kind string, synced func() bool)
	// Leads is framework.Handle.Leads.
	Leads func() bool
}

// Assembly builds the settings of the engine from a configuration, with the caches that they need. It is a manager without servers.
//
// Its caches contain pending pods, trimmed nodes, and the kinds and selections of plugins, so memory does not grow with running pods. It
// uses memory and permissions only for the kinds that are watched. The cache of the manager is empty.
//
// Only Cached, Denied and the methods of the manager are safe for concurrent use.
type Assembly struct {
	manager.Manager
	// Changes ends waits when the cache changes.
	Changes *notify.Hub

	o Options
	// running ends when the manager stops.
	running    context.Context //nolint:containedctx // The caches of selections, which begin later, run until then.
	selections *selections
	source     *Source
	// synced contains a function for each of the kinds and selections of registrations.
	synced []toolscache.InformerSynced
}

// New returns an Assembly without plugins. Start it with the same context.
func New(ctx context.Context, config *rest.Config, o Options) (*Assembly, error) {
	a := &Assembly{
		Changes: notify.NewHub(), o: o, running: ctx, selections: &selections{clock: clock.RealClock{}, all: map[string]*selection{}},
	}
	if err := a.setUp(config); err != nil {
		return nil, fmt.Errorf("setting up: %w", err)
	}
	return a, nil
}

// Denied returns an error with the missing permission or kind while the API server rejects a watch.
func (a *Assembly) Denied() error { return a.selections.denied() }

// Settings returns the settings of the engine for a valid configuration. Call it once, before the manager runs. WaitFor must then wait for the
// caches, and for plugins that implement framework.Starter.
func (a *Assembly) Settings(c *configuration.PrebindConfiguration) (binder.Settings, error) {
	out := binder.Settings{
		Mode: c.Mode, Hold: c.Budgets.Hold.Duration, MaxHolds: c.Budgets.MaxHolds,
		PreBindTimeout: c.Budgets.PreBindTimeout.Duration, MaxPreBindTimeout: c.Budgets.MaxPreBindTimeout.Duration, Namespaces: c.Namespaces,
	}
	err := a.watch("Prebind", &corev1.Pod{}, &corev1.Node{})
	if err != nil {
		return out, err
	}
	if out.Mutators, out.Claimed, err = a.mutators(c); err != nil {
		return out, err
	}
	out.Plugins, err = a.plugins(c)
	return out, err
}

// Cached returns the reader of the cache and of the selections. It is safe for concurrent use.
func (a *Assembly) Cached() framework.Reader { return a.selections }

// WaitForSync waits until the caches have all objects, and Changes and the plugins know them, or until the context ends. The caches begin
// when they are added, so a part of the program that reads them without waiting for readiness calls it.
func (a *Assembly) WaitForSync(ctx context.Context) {
	toolscache.WaitForCacheSync(ctx.Done(), a.synced...)
}

// Synced returns whether WaitForSync need not wait.
func (a *Assembly) Synced() bool {
	return !slices.ContainsFunc(a.synced, func(f toolscache.InformerSynced) bool { return !f() })
}

// watch adds the selections of the kinds.
func (a *Assembly) watch(user string, examples ...client.Object) error {
	for _, example := range examples {
		if err := a.useRegistered(KindSelection(example), user); err != nil {
			return err
		}
	}
	return nil
}

// mutators returns the chain of the mutators that are on, and the source of the devices that
// they need, if any.
func (a *Assembly) mutators(c *configuration.PrebindConfiguration) (*mutation.Chain, func(context.Context, *corev1.Pod) ([]framework.Device, error), error) {
	var list []mutators.Mutator
	var claims *mutators.Registration
	for _, e := range c.SelectedMutators() {
		m, err := e.New(c.Arguments.Of(e.Name))
		if err != nil {
			return nil, nil, fmt.Errorf("mutator %s: %w", e.Name, err)
		}
		if m.Name() != e.Name {
			return nil, nil, fmt.Errorf("mutator %s: must be named as registered, got %q", e.Name, m.Name())
		}
		list = append(list, a.o.Recorder.Mutator(m))
		if e.Claims {
			claims = &e
		}
	}
	chain := mutation.NewChain(list, c.RequiredMutators)
	if claims == nil {
		return chain, nil, nil
	}
	switch missing, err := a.missing(claimed.Kind); {
	case err != nil:
		return nil, nil, err
	case missing != "":
		klog.InfoS("Mutators get no devices: the API server does not serve ResourceClaims", "kind", missing)
		return chain, nil, nil
	}
	err := a.watch("mutator "+claims.Name, &resourcev1.ResourceClaim{})
	return chain, func(ctx context.Context, pod *corev1.Pod) ([]framework.Device, error) {
		return claimed.Devices(ctx, a.Cached(), a.GetAPIReader(), pod)
	}, err
}

// plugins builds the plugins that are on.
func (a *Assembly) plugins(c *configuration.PrebindConfiguration) ([]framework.Plugin, error) {
	var list []framework.Plugin
	for _, e := range c.SelectedPlugins() {
		missing, err := a.missing(e.Requires...)
		if err != nil {
			return nil, err
		}
		if missing != "" {
			own := strings.Contains(missing, ".prebind.dev/")
			if own && (slices.Contains(c.PreBindPlugins, e.Name) || missing != e.Requires[0].String()) {
				// The manifests of the plugin install its kinds, which the API server can serve some seconds later.
				return nil, fmt.Errorf("plugin %s: the API server does not serve %s: install the CustomResourceDefinitions of the plugin, or remove it from the list of plugins", e.Name, missing)
			}
			klog.InfoS("Skipped a PreBind plugin: the API server does not serve the kind that it requires", "plugin", e.Name, "kind", missing)
			continue
		}
		p, err := a.plugin(e, c.Arguments.Of(e.Name))
		if err != nil {
			return nil, fmt.Errorf("plugin %s: %w", e.Name, err)
		}
		list = append(list, p)
	}
	return list, nil
}

// plugin adds the kinds that the plugin needs to the cache, builds the plugin, and starts it.
func (a *Assembly) plugin(e framework.Registration, arguments framework.Arguments) (framework.Plugin, error) {
	by := "PreBind plugin " + e.Name
	if err := a.watch(by, e.Watches...); err != nil {
		return nil, err
	}
	p, err := e.New(framework.Handle{
		Cached: a.Cached(), Live: a.o.Recorder.Reader(a.GetAPIReader(), e.Name), Writer: a.GetClient(), Status: a.GetClient(),
		Wake: a.Changes.Wake, Clock: clock.RealClock{}, Namespace: a.o.Namespace,
		Events: a.GetEventRecorder("prebind"), Replicas: a.o.Replicas, Leads: a.o.Leads, Discovery: a.source.Discovery,
		Select: func(ctx context.Context, want framework.Selection) error { return a.selects(ctx, e.Name, want) },
		Keep:   func(names sets.Set[string]) { a.selections.keep(e.Name, names) },
	}, arguments)
	switch {
	case err != nil:
		return nil, err
	case p.Name() != e.Name:
		return nil, fmt.Errorf("must be named as registered, got %q", p.Name())
	}
	if e.Selections != nil {
		for _, s := range e.Selections(a.o.Namespace, arguments) {
			if err := a.useRegistered(s, by); err != nil {
				return nil, err
			}
		}
	}
	if s, ok := p.(framework.Starter); ok {
		// Readiness waits until the plugin can decide. If its Start fails, the process ends.
		a.o.WaitFor(by, s.HasSynced)
		err = a.Add(manager.RunnableFunc(func(ctx context.Context) error {
			a.WaitForSync(ctx)
			if err := s.Start(ctx); err != nil && ctx.Err() == nil {
				return fmt.Errorf("plugin %s: %w", e.Name, err)
			}
			return nil
		}))
	}
	return p, err
}

// missing returns the first kind that the API server does not serve, or "".
func (a *Assembly) missing(kinds ...schema.GroupVersionKind) (string, error) {
	for _, kind := range kinds {
		_, err := a.GetRESTMapper().RESTMapping(kind.GroupKind(), kind.Version)
		if meta.IsNoMatchError(err) {
			return kind.String(), nil
		}
		if err != nil {
			return "", fmt.Errorf("discovering %s: %w", kind, err)
		}
	}
	return "", nil
}
