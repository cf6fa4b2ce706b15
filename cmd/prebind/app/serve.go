// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	cliflag "k8s.io/component-base/cli/flag"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // For --logging-format=json.
	"k8s.io/component-base/term"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/binder/api"
	"github.com/prebind/prebind/binder/claimed"
	"github.com/prebind/prebind/binder/notify"
	"github.com/prebind/prebind/binder/replica"
	"github.com/prebind/prebind/mutators"
	"github.com/prebind/prebind/webhook"
)

// firstContact is how long the API server may take to answer at the start.
const firstContact = 10 * time.Second

func newServeCommand(o *serveOptions) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the webhook",
		Long: `Run the webhook until SIGTERM or SIGINT.

It answers AdmissionReviews at ` + webhook.Path + `. Until its caches are synced, and
while it shuts down, it answers HTTP 503 with Retry-After, so that the API server
turns to another replica.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.validate(); err != nil {
				return err
			}
			if err := logsapi.ValidateAndApply(o.logging, nil); err != nil {
				return fmt.Errorf("logging flags: %w", err)
			}
			return serve(cmd.Context(), o)
		},
	}
	sets := o.flags()
	for _, name := range sets.Order {
		cmd.Flags().AddFlagSet(sets.FlagSets[name])
	}
	width, _, _ := term.TerminalSize(cmd.OutOrStdout())
	cliflag.SetUsageAndHelpFunc(cmd, sets, width)
	return cmd
}

// serve runs the webhook until the context ends. Whatever can be found wrong is
// found before anything is started.
func serve(ctx context.Context, o *serveOptions) error {
	certificate, err := certwatcher.New(o.certFile(), o.keyFile())
	if err != nil {
		return fmt.Errorf("--cert-dir: reading the certificate: %w", err)
	}
	config, err := restConfig(o.kubeconfig)
	if err != nil {
		return err
	}
	if err := contact(config); err != nil {
		return err
	}
	listener, err := listen(ctx, "webhook-bind-address", o.webhookAddress)
	if err != nil {
		return err
	}
	defer func() { _ = listener.Close() }() // The server has closed it when it ran.
	probes, err := listen(ctx, "health-probe-bind-address", o.healthAddress)
	if err != nil {
		return err
	}
	defer func() { _ = probes.Close() }()

	// Only from here on libraries may log: what is wrong before is said in one line.
	ctrl.SetLogger(klog.Background())
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	mgr, err := newManager(running, config, o)
	if err != nil {
		return err
	}
	ready := &readiness{}
	id := replica.NewID()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("setting up: %w", err)
	}
	replicas, err := replica.New(replica.Options{ID: id, Client: client, Namespace: o.namespace, Clock: clock.RealClock{}})
	if err != nil {
		return err
	}
	engine, err := newEngine(ctx, mgr, o, id, ready)
	if err != nil {
		return err
	}
	if err := newUnderWay(engine.Stats, metrics.Registry); err != nil {
		return err
	}
	counted, err := newMeasured(engine, clock.RealClock{}, metrics.Registry)
	if err != nil {
		return err
	}
	handler, err := webhook.NewHandler(webhook.Options{Engine: counted, Ready: ready.check, Log: klog.Background(), Clock: clock.RealClock{}})
	if err != nil {
		return err
	}
	server := webhook.NewServer(handler, certificate.GetCertificate)
	err = addAll(mgr, certificate, replicas, elected(o, client, id, binder.NewSweeper(engine, replicas)), sweeping(binder.NewOwnSweeper(engine)), &manager.Server{
		Name:            "webhook",
		Server:          server,
		Listener:        tls.NewListener(listener, server.TLSConfig),
		ShutdownTimeout: &o.shutdownTimeout,
	}, &manager.Server{
		Name:            "probes",
		Server:          probeServer(ready.check),
		Listener:        probes,
		ShutdownTimeout: &o.shutdownTimeout,
	})
	if err != nil {
		return err
	}

	defer context.AfterFunc(ctx, func() {
		defer stop()
		shutDown(running, o, ready, engine)
	})()
	klog.InfoS("Starting Prebind", "version", version, "replica", id, "webhook", listener.Addr().String())
	return mgr.Start(running)
}

// shutDown returns when the manager may take everything down. Calls under way are
// told to call again, and new ones are sent to another replica, for as long as it
// takes until none leads here any more; meanwhile the binds that were allowed come
// to their outcome. The attempts end while the lease still says that this replica
// lives: nobody touches what they are at.
func shutDown(ctx context.Context, o *serveOptions, ready *readiness, engine *binder.Engine) {
	wasReady := ready.check() == nil
	ready.drain()
	engine.Drain()
	if wasReady {
		klog.InfoS("Shutting down: calls are sent to another replica", "for", o.shutdownDelay)
		settling, cancel := context.WithTimeout(ctx, o.shutdownDelay)
		defer cancel()
		engine.Settle(settling)
		<-settling.Done()
	}
	stopping, cancel := context.WithTimeout(ctx, o.shutdownTimeout)
	defer cancel()
	if err := engine.Stop(stopping); err != nil {
		klog.ErrorS(err, "Left attempts behind")
	}
}

func listen(ctx context.Context, flag, address string) (net.Listener, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", flag, err)
	}
	return listener, nil
}

func addAll(mgr manager.Manager, runnables ...manager.Runnable) error {
	for _, r := range runnables {
		if err := mgr.Add(r); err != nil {
			return err
		}
	}
	return nil
}

// newEngine builds what the flags switch on and makes the cache hold what it
// needs, and nothing else.
func newEngine(ctx context.Context, mgr manager.Manager, o *serveOptions, id string, ready *readiness) (*binder.Engine, error) {
	changes := notify.NewHub()
	if err := watch(ctx, mgr, ready, changes, coreWatches()); err != nil {
		return nil, err
	}
	chain, err := buildMutators(o)
	if err != nil {
		return nil, err
	}
	claims, err := claimedDevices(ctx, mgr, o, ready, changes)
	if err != nil {
		return nil, err
	}
	specs, err := o.selectedPlugins()
	if err != nil {
		return nil, err
	}
	var plugins []api.PreBinder
	for _, s := range specs {
		lacking, err := missingKind(mgr, s.Requires)
		if err != nil {
			return nil, err
		}
		if lacking != "" {
			klog.InfoS("Left a PreBind plugin out: the API server does not know what it is for", "plugin", s.Name, "kind", lacking)
			continue
		}
		p, err := buildPlugin(ctx, mgr, o, ready, changes, s)
		if err != nil {
			return nil, fmt.Errorf("plugin %s: %w", s.Name, err)
		}
		plugins = append(plugins, p)
	}
	observed, err := newObserver(metrics.Registry)
	if err != nil {
		return nil, err
	}
	return binder.New(binder.Options{
		Cached: mgr.GetCache(),
		Live:   mgr.GetAPIReader(),
		Settings: binder.Settings{
			Mode:              binder.ModeEnforce,
			Mutators:          chain,
			Plugins:           plugins,
			Claimed:           claims,
			Hold:              o.hold,
			MaxHolds:          o.maxHolds,
			PreBindTimeout:    o.preBindTimeout,
			MaxPreBindTimeout: o.preBindMax,
		},
		Replica:  id,
		Domain:   o.domain,
		Changes:  changes,
		Events:   mgr.GetEventRecorder("prebind"),
		Observer: observed,
		Clock:    clock.RealClock{},
	})
}

// buildPlugin makes the cache hold what the plugin needs, and builds it.
func buildPlugin(ctx context.Context, mgr manager.Manager, o *serveOptions, ready *readiness, changes *notify.Hub, s Plugin) (api.PreBinder, error) {
	if s.Index != nil {
		if err := s.Index(ctx, mgr.GetFieldIndexer()); err != nil {
			return nil, fmt.Errorf("indexing the cache: %w", err)
		}
	}
	if s.Watches != nil {
		if err := watch(ctx, mgr, ready, changes, s.Watches()); err != nil {
			return nil, err
		}
	}
	p, err := s.Build(Deps{Cached: mgr.GetCache(), Live: mgr.GetAPIReader(), Writer: mgr.GetClient(), Status: mgr.GetClient(), Changes: changes, Clock: clock.RealClock{}, Domain: o.domain, Namespace: o.namespace})
	if err == nil && p.Name() != s.Name {
		err = fmt.Errorf("it is registered as %q and calls itself %q", s.Name, p.Name())
	}
	return p, err
}

func buildMutators(o *serveOptions) (*mutators.Chain, error) {
	specs, err := o.selectedMutators()
	if err != nil {
		return nil, err
	}
	var list []mutators.Mutator
	for _, s := range specs {
		m, err := s.Build()
		if err != nil {
			return nil, fmt.Errorf("mutator %s: %w", s.Name, err)
		}
		list = append(list, m)
	}
	return mutators.NewChain(mutators.Options{Domain: o.domain, Mutators: list, Required: o.requiredMutators})
}

// missingKind returns the first of the kinds that the API server does not know, or
// "".
func missingKind(mgr manager.Manager, kinds []schema.GroupVersionKind) (string, error) {
	for _, kind := range kinds {
		_, err := mgr.GetRESTMapper().RESTMapping(kind.GroupKind(), kind.Version)
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
func claimedDevices(ctx context.Context, mgr manager.Manager, o *serveOptions, ready *readiness, changes *notify.Hub) (func(context.Context, *corev1.Pod) ([]api.Device, error), error) {
	specs, err := o.selectedMutators()
	if err != nil || !slices.ContainsFunc(specs, func(m Mutator) bool { return m.Claims }) {
		return nil, err
	}
	if lacking, err := missingKind(mgr, []schema.GroupVersionKind{resourceClaimKind}); err != nil {
		return nil, err
	} else if lacking != "" {
		klog.InfoS("The API server does not know ResourceClaims: mutators are told of none", "kind", lacking)
		return nil, nil
	}
	if err := watch(ctx, mgr, ready, changes, claimed.Watches()); err != nil {
		return nil, err
	}
	return claimed.New(mgr.GetCache(), mgr.GetAPIReader()).Devices, nil
}

// restConfig leads to the API server by the kubeconfig or, without one, from
// within a pod.
func restConfig(kubeconfig string) (*rest.Config, error) {
	var config *rest.Config
	var err error
	if kubeconfig == "" {
		if config, err = rest.InClusterConfig(); err != nil {
			return nil, fmt.Errorf("--kubeconfig is not given, and there is no pod's way to the API server: %w", err)
		}
	} else if config, err = clientcmd.BuildConfigFromFlags("", kubeconfig); err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	// The API server's priority and fairness is the limit, not a second one here.
	config.QPS = -1
	config.UserAgent = "prebind/" + version
	return config, nil
}

// contact fails when the API server does not answer.
func contact(config *rest.Config) error {
	probe := rest.CopyConfig(config)
	probe.Timeout = firstContact
	client, err := discovery.NewDiscoveryClientForConfig(probe)
	if err == nil {
		_, err = client.ServerVersion()
	}
	if err != nil {
		return fmt.Errorf("the API server at %s does not answer: %w", config.Host, err)
	}
	return nil
}
