// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/binder/claimed"
	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/mutators"
	"github.com/prebind/prebind/telemetry"
)

// cacheTakes is how long a cache may take that is filled while Prebind runs.
const cacheTakes = time.Minute

// assembly makes the engine's settings of a configuration, with the caches that
// they need, and nothing else. It is for one goroutine at a time.
type assembly struct {
	mgr      manager.Manager
	ready    *readiness
	changes  *framework.Hub
	grants   grants
	recorder *telemetry.Recorder
	// namespace is that of the options.
	namespace string

	// watched are the kinds that the cache holds, indexed the names of its indexes, and
	// handled the plugins whose handlers get its events.
	watched, indexed, handled map[string]bool
	// built are the plugins that were built last, by name: one whose arguments have
	// not changed goes on as it is.
	built map[string]builtPlugin
}

type builtPlugin struct {
	arguments Arguments
	plugin    framework.PreBinder
}

func newAssembly(mgr manager.Manager, o *serveOptions, ready *readiness, g grants, r *telemetry.Recorder) *assembly {
	return &assembly{
		mgr: mgr, ready: ready, changes: framework.NewHub(), grants: g, recorder: r, namespace: o.namespace,
		watched: map[string]bool{}, indexed: map[string]bool{}, handled: map[string]bool{}, built: map[string]builtPlugin{},
	}
}

// settings returns those of the configuration. Before the manager runs, readiness
// waits for the caches; later the method itself does.
func (a *assembly) settings(ctx context.Context, s *settings) (binder.Settings, error) {
	ctx, cancel := context.WithTimeout(ctx, cacheTakes)
	defer cancel()
	parts, err := needsOf(s, a.namespace)
	if err == nil {
		err = a.grants.checkAll(ctx, parts)
	}
	if err != nil {
		return binder.Settings{}, err
	}
	out := binder.Settings{
		Mode: s.Mode, Hold: s.Budgets.Hold, MaxHolds: s.Budgets.MaxHolds,
		PreBindTimeout: s.Budgets.PreBindTimeout, MaxPreBindTimeout: s.Budgets.MaxPreBindTimeout, Namespaces: s.Namespaces,
	}
	if err := a.watch(ctx, &corev1.Pod{}, &corev1.Node{}); err != nil {
		return out, err
	}
	if out.Mutators, err = a.mutators(s); err != nil {
		return out, err
	}
	if out.Claimed, err = a.claimedDevices(ctx, s); err != nil {
		return out, err
	}
	out.Plugins, err = a.plugins(ctx, s)
	return out, err
}

// watch makes the cache hold the kinds, and the hub hear of their changes.
func (a *assembly) watch(ctx context.Context, examples ...client.Object) error {
	for _, example := range examples {
		kind := framework.KindOf(example)
		if a.watched[kind] {
			continue
		}
		informer, err := a.mgr.GetCache().GetInformer(ctx, example)
		if err != nil {
			return fmt.Errorf("watching %s objects: %w", kind, err)
		}
		if err := a.changes.Attach(example, informer); err != nil {
			return err
		}
		a.ready.waitFor(kind, informer.HasSynced)
		a.watched[kind] = true
	}
	return nil
}

func (a *assembly) mutators(s *settings) (*mutators.Chain, error) {
	entries, err := s.selectedMutators()
	if err != nil {
		return nil, err
	}
	var list []mutators.Mutator
	for _, e := range entries {
		m, err := e.New(s.argumentsOf(e.Name))
		if err != nil {
			return nil, fmt.Errorf("mutator %s: %w", e.Name, err)
		}
		list = append(list, a.recorder.Mutator(m))
	}
	return mutators.NewChain(mutators.Options{Domain: framework.Domain, Mutators: list, Required: s.RequiredMutators})
}

// plugins builds those that are on and were not on before, or with other arguments.
func (a *assembly) plugins(ctx context.Context, s *settings) ([]framework.PreBinder, error) {
	entries, err := s.selectedPlugins()
	if err != nil {
		return nil, err
	}
	built := map[string]builtPlugin{}
	var list []framework.PreBinder
	for _, e := range entries {
		lacking, err := a.missingKind(e.Requires)
		if err != nil {
			return nil, err
		}
		if lacking != "" {
			klog.InfoS("Left a PreBind plugin out: the API server does not know what it is for", "plugin", e.Name, "kind", lacking)
			continue
		}
		b, ok := a.built[e.Name]
		if !ok || !reflect.DeepEqual(b.arguments, s.argumentsOf(e.Name)) {
			if b, err = a.plugin(ctx, e, s.argumentsOf(e.Name)); err != nil {
				return nil, fmt.Errorf("plugin %s: %w", e.Name, err)
			}
		}
		built[e.Name] = b
		list = append(list, b.plugin)
	}
	a.built = built
	return list, nil
}

// plugin makes the cache hold what the plugin needs, and builds it.
func (a *assembly) plugin(ctx context.Context, e framework.Registration, arguments Arguments) (builtPlugin, error) {
	if e.Index != nil {
		if err := e.Index(ctx, onceIndexer{indexer: a.mgr.GetFieldIndexer(), indexed: a.indexed}, arguments); err != nil {
			return builtPlugin{}, fmt.Errorf("indexing the cache: %w", err)
		}
	}
	if e.Watches != nil {
		examples := e.Watches(arguments)
		if err := a.watch(ctx, examples...); err != nil {
			return builtPlugin{}, err
		}
		if err := a.handle(ctx, e, examples); err != nil {
			return builtPlugin{}, err
		}
	}
	p, err := e.New(framework.Handle{
		Cached: a.mgr.GetCache(), Live: a.recorder.Reader(a.mgr.GetAPIReader(), e.Name), Writer: a.mgr.GetClient(), Status: a.mgr.GetClient(),
		Changes: a.changes, Clock: clock.RealClock{}, Namespace: a.namespace,
	}, arguments)
	if err == nil && p.Name() != e.Name {
		err = fmt.Errorf("it is registered as %q and calls itself %q", e.Name, p.Name())
	}
	return builtPlugin{arguments: arguments, plugin: p}, err
}

// handle gives the events of the kinds to the plugin's handlers. After the start it
// does not wait until they have seen all objects.
func (a *assembly) handle(ctx context.Context, e framework.Registration, examples []client.Object) error {
	if a.handled[e.Name] {
		return nil
	}
	for _, kind := range slices.Sorted(maps.Keys(e.Handlers)) {
		i := slices.IndexFunc(examples, func(o client.Object) bool { return framework.KindOf(o) == kind })
		if i < 0 {
			return fmt.Errorf("it handles events of %s objects and does not watch them", kind)
		}
		informer, err := a.mgr.GetCache().GetInformer(ctx, examples[i])
		if err != nil {
			return fmt.Errorf("watching %s objects: %w", kind, err)
		}
		added, err := informer.AddEventHandler(e.Handlers[kind])
		if err != nil {
			return fmt.Errorf("watching %s objects: %w", kind, err)
		}
		a.ready.waitFor(kind, added.HasSynced)
	}
	a.handled[e.Name] = true
	return nil
}

// onceIndexer adds each index once. The names of indexes are unique across kinds.
type onceIndexer struct {
	indexer client.FieldIndexer
	indexed map[string]bool
}

// IndexField implements client.FieldIndexer.
func (i onceIndexer) IndexField(ctx context.Context, of client.Object, field string, keys client.IndexerFunc) error {
	if i.indexed[field] {
		return nil
	}
	err := i.indexer.IndexField(ctx, of, field, keys)
	i.indexed[field] = err == nil
	return err
}

// missingKind returns the first of the kinds that the API server does not know, or
// "".
func (a *assembly) missingKind(kinds []schema.GroupVersionKind) (string, error) {
	for _, kind := range kinds {
		_, err := a.mgr.GetRESTMapper().RESTMapping(kind.GroupKind(), kind.Version)
		if meta.IsNoMatchError(err) {
			return kind.String(), nil
		}
		if err != nil {
			return "", fmt.Errorf("asking whether the API server knows %s: %w", kind, err)
		}
	}
	return "", nil
}

// claimedDevices finds the devices of a pod's ResourceClaims, where a mutator asks
// for them and the cluster has such claims.
func (a *assembly) claimedDevices(ctx context.Context, s *settings) (func(context.Context, *corev1.Pod) ([]framework.Device, error), error) {
	entries, err := s.selectedMutators()
	if err != nil || !slices.ContainsFunc(entries, func(m mutators.Registration) bool { return m.Claims }) {
		return nil, err
	}
	if lacking, err := a.missingKind([]schema.GroupVersionKind{claimed.Kind}); err != nil {
		return nil, err
	} else if lacking != "" {
		klog.InfoS("The API server does not know ResourceClaims: mutators are told of none", "kind", lacking)
		return nil, nil
	}
	if err := a.watch(ctx, claimed.Watches()...); err != nil {
		return nil, err
	}
	return claimed.New(a.mgr.GetCache(), a.mgr.GetAPIReader()).Devices, nil
}
