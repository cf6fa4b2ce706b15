// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"time"

	"github.com/spf13/cobra"
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
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/binder/replica"
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
			configuration, err := o.complete(cmd.Flags())
			if err != nil {
				return err
			}
			if err := logsapi.ValidateAndApply(o.logging, nil); err != nil {
				return fmt.Errorf("logging flags: %w", err)
			}
			return serve(cmd.Context(), o, configuration)
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
func serve(ctx context.Context, o *serveOptions, c *configuration) error {
	certs, err := o.certificates.read()
	if err != nil {
		return err
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
	parts := newAssembly(mgr, o, ready, grants{client})
	engine, err := newEngine(ctx, parts, c, o, id)
	if err != nil {
		return err
	}
	reach, err := reacher(config, lookTakes)
	if err != nil {
		return err
	}
	watching := newMonitor(reach, grants{client}, ready, clock.RealClock{})
	reloads, err := newReloader(o, parts, engine, watching, c)
	if err != nil {
		return err
	}
	replicas, err := replica.New(replica.Options{
		ID: id, Client: client, Namespace: o.namespace, Clock: clock.RealClock{},
		Status: statusOf(engine, o, ready, id, reloads.inForce.Load),
	})
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
	handler, err := webhook.NewHandler(webhook.Options{Engine: counted, Ready: ready.check, Log: klog.Background(), Clock: clock.RealClock{}, Domain: o.domain})
	if err != nil {
		return err
	}
	if err := register(metrics.Registry, certs.metrics); err != nil {
		return err
	}
	if err := certs.manage(ctx, &o.certificates, client, o.namespace, ready); err != nil {
		return err
	}
	server := webhook.NewServer(handler, certs.tls)
	err = addAll(mgr, certs, replicas, elected(o, client, id, binder.NewSweeper(engine, replicas)), sweeping(binder.NewOwnSweeper(engine)), watching, reloads, &manager.Server{
		Name:            "webhook",
		Server:          server,
		Listener:        tls.NewListener(listener, server.TLSConfig),
		ShutdownTimeout: &o.shutdownTimeout,
	}, &manager.Server{
		Name:            "probes",
		Server:          probeServer(ready.probe),
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

// newEngine makes the engine of the configuration.
func newEngine(ctx context.Context, parts *assembly, c *configuration, o *serveOptions, id string) (*binder.Engine, error) {
	settings, err := parts.settings(ctx, c.settings)
	if err != nil {
		return nil, err
	}
	observed, err := newObserver(metrics.Registry)
	if err != nil {
		return nil, err
	}
	return binder.New(binder.Options{
		Cached:   parts.mgr.GetCache(),
		Live:     parts.mgr.GetAPIReader(),
		Settings: settings,
		Replica:  id,
		Domain:   o.domain,
		Changes:  parts.changes,
		Events:   parts.mgr.GetEventRecorder("prebind"),
		Observer: observed,
		Clock:    clock.RealClock{},
	})
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
	reach, err := reacher(config, firstContact)
	if err == nil {
		err = reach()
	}
	if err != nil {
		return fmt.Errorf("the API server at %s does not answer: %w", config.Host, err)
	}
	return nil
}

// reacher returns a function that says why the API server does not answer, within
// the time; it takes no permission.
func reacher(config *rest.Config, within time.Duration) (func() error, error) {
	probe := rest.CopyConfig(config)
	probe.Timeout = within
	client, err := discovery.NewDiscoveryClientForConfig(probe)
	if err != nil {
		return nil, fmt.Errorf("setting up: %w", err)
	}
	return func() error {
		_, err := client.ServerVersion()
		return err
	}, nil
}
