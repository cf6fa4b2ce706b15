// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/prebind/prebind/binder"
	policyplugin "github.com/prebind/prebind/binder/plugins/policy"
	"github.com/prebind/prebind/cmd/internal/cli"
	"github.com/prebind/prebind/internal/apiclient"
	"github.com/prebind/prebind/internal/assembly"
	"github.com/prebind/prebind/internal/certificates"
	"github.com/prebind/prebind/internal/configuration"
	"github.com/prebind/prebind/internal/policy"
	"github.com/prebind/prebind/internal/replica"
	"github.com/prebind/prebind/internal/telemetry"
	"github.com/prebind/prebind/internal/work"
	"github.com/prebind/prebind/webhook"
)

// process contains the parts of a replica.
type process struct {
	o         *serveOptions
	id        string
	config    *rest.Config
	ready     *webhook.Readiness
	listeners map[string]net.Listener
	certs     *certificates.Source

	// client is for small requests: leases, the FlowSchema and schemas.
	client   kubernetes.Interface
	replicas *replica.Replicas
	traces   *telemetry.Traces
	recorder *telemetry.Recorder
	assembly *assembly.Assembly
	engine   *binder.Engine
	// configuration is in force until the process ends.
	configuration *configuration.PrebindConfiguration
}

// serve runs the webhook until the context ends. It checks the flags and the cluster
// before it starts the manager.
func serve(ctx context.Context, o *serveOptions, c *configuration.PrebindConfiguration) error {
	p := &process{o: o, configuration: c, id: replica.NewID(), ready: &webhook.Readiness{}}
	shared := certificates.Shared{
		Clock: clock.RealClock{}, Log: klog.Background(), Metrics: certificates.NewMetrics(),
		Client: func() client.Client { return p.assembly.GetClient() }, Namespace: o.namespace,
	}
	var err error
	if p.certs, err = certificates.New(o.certificates, shared); err != nil {
		return err
	}
	if p.config, p.client, err = apiclient.Connect(ctx, o.kubeconfig, cli.UserAgent(), replica.RequestTakes); err != nil {
		return err
	}
	if p.listeners, err = o.listen(ctx); err != nil {
		return err
	}

	// Libraries log only after this line, because earlier problems are reported in one line.
	ctrl.SetLogger(klog.Background())
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	if err := p.buildEngine(running, shared.Metrics); err != nil {
		return err
	}
	exemption, err := apiclient.NewExemption(p.config, replica.RequestTakes, p.engine.Exempt)
	if err != nil {
		return err
	}
	parts := []manager.Runnable{p.replicas, exemption, always(func(ctx context.Context) {
		p.assembly.WaitForSync(ctx)
		p.engine.Sweep(ctx, p.replicas)
	})}
	for _, part := range append(parts, p.servers()...) {
		if err := p.assembly.Add(part); err != nil {
			return err
		}
	}
	defer p.traces.Flush(ctx)
	defer context.AfterFunc(ctx, func() {
		defer stop()
		p.shutDown(running)
	})()
	klog.InfoS("Starting Prebind", "version", cli.Version(), "replica", p.id, "webhook", p.listeners["webhook-bind-address"].Addr().String())
	return p.assembly.Start(running)
}

// shutDown returns when the manager can stop all parts. Prebind answers held calls with 429, and
// new calls go to other replicas. shutDown waits while the cluster removes the endpoint of this replica and
// binds allowed ones. The attempts end while the lease still shows that this
// replica is alive, so that other replicas do not change them.
func (p *process) shutDown(ctx context.Context) {
	wasReady := p.ready.Check() == nil
	p.ready.Drain()
	p.engine.Drain()
	if wasReady {
		klog.InfoS("Shutting down: new calls go to other replicas", "delay", p.o.shutdownDelay)
		select {
		case <-time.After(p.o.shutdownDelay):
		case <-ctx.Done():
		}
	}
	stopping, cancel := context.WithTimeout(ctx, p.o.shutdownTimeout)
	defer cancel()
	if err := p.engine.Stop(stopping); err != nil {
		klog.ErrorS(err, "Left attempts in progress")
	}
}

// listen opens a listener for each address, by flag. The end of the process closes those without a server.
func (o *serveOptions) listen(ctx context.Context) (map[string]net.Listener, error) {
	all := map[string]net.Listener{}
	for _, l := range []struct{ flag, address string }{
		{"webhook-bind-address", o.webhookAddress}, {"health-probe-bind-address", o.healthAddress}, {"metrics-bind-address", o.metricsAddress},
		{"debug-bind-address", o.debugAddress},
	} {
		if l.address == "" || l.address == "0" {
			continue
		}
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", l.address)
		if err != nil {
			return nil, fmt.Errorf("--%s: %w", l.flag, err)
		}
		all[l.flag] = listener
	}
	return all, nil
}

// buildEngine creates the manager and the engine for the configuration. The manager must be started with the same context.
func (p *process) buildEngine(ctx context.Context, certs *certificates.Metrics) error {
	var err error
	if p.traces, err = telemetry.NewTraces(ctx, p.o.tracing, cli.Version(), p.id); err != nil {
		return err
	}
	metrics.Registry.MustRegister(certs.Collectors()...)
	if p.recorder, err = telemetry.New(telemetry.Options{
		Registry: metrics.Registry, Clock: clock.RealClock{}, Version: cli.Version(), Config: p.configuration.Hash, Mode: string(p.configuration.Mode),
		Plugins: p.o.registry.Plugins, Traces: p.traces,
	}); err != nil {
		return err
	}
	p.replicas = replica.New(replica.Options{
		ID: p.id, Client: p.client, Namespace: p.o.namespace, Clock: clock.RealClock{}, Elect: p.o.leaderElect,
		Synced: func() bool { return p.assembly.Synced() }, Status: p.status,
	})
	if p.assembly, err = assembly.New(ctx, p.config, assembly.Options{
		Registry: p.o.registry, Recorder: p.recorder, Namespace: p.o.namespace,
		Replicas: p.replicas.Count, WaitFor: p.ready.WaitFor, Leads: p.replicas.Leads,
	}); err != nil {
		return err
	}
	p.ready.RequireOnce(p.assembly.Denied) // Before the caches, which then cannot be filled.
	settings, err := p.assembly.Settings(p.configuration)
	if err != nil {
		return err
	}
	p.ready.Require(p.replicas.Held)
	p.engine = binder.New(binder.Options{
		Settings: settings,
		Options: work.Options{
			Cached:   p.assembly.Cached(),
			Live:     p.assembly.GetAPIReader(),
			Replica:  p.id,
			Term:     p.replicas.Term,
			Changes:  p.assembly.Changes,
			Events:   p.assembly.GetEventRecorder("prebind"),
			Recorder: p.recorder,
			Clock:    clock.RealClock{},
		},
	})
	p.recorder.Show(p.engine.Stats, p.ready.Probe)
	return nil
}

// status returns the status for the lease of this replica. It is called only while
// all parts run.
func (p *process) status() (string, error) {
	stats, c := p.engine.Stats(), p.configuration
	s := replica.Status{
		Replica: p.id, Leader: p.replicas.Leads(), Pod: p.o.podName, Version: cli.Version(), Config: c.Hash, Mode: string(c.Mode),
		Attempts: stats.Attempts, Holds: stats.Holds, MaxHolds: stats.MaxHolds,
	}
	if err := p.ready.Probe(); err != nil {
		s.Problem = err.Error()
	} else if err := p.assembly.Denied(); err != nil { // It stays ready: this probably concerns all replicas.
		s.Lacks = err.Error()
	}
	return s.Encode(p.engine.InFlight())
}

// always returns a Runnable that cannot fail.
func always(run func(context.Context)) manager.RunnableFunc {
	return func(ctx context.Context) error {
		run(ctx)
		return nil
	}
}

// servers returns the certificates and all servers.
func (p *process) servers() []manager.Runnable {
	handler := &webhook.Handler{Engine: p.recorder.Engine(p.engine), Ready: p.ready.Check, Log: klog.Background(), Clock: clock.RealClock{}}
	server := webhook.NewServer(webhook.ServerOptions{
		Listener: p.listeners["webhook-bind-address"], Certificates: p.certs.Configure, Clock: clock.RealClock{}, Refused: p.recorder.RequestRefused,
		ShutdownTimeout: p.o.shutdownTimeout, ErrorLog: errorLog("webhook"),
	})
	server.Register(webhook.Path, webhook.OnlyFrom(p.o.certificates.ClientNames, p.recorder.Handler(handler)))
	policies := webhook.NewPolicyHandler(p.policyCompiler())
	server.Register(webhook.PolicyPath, webhook.OnlyFrom(p.o.certificates.ClientNames, policies))
	trust := &webhook.Trust{Reader: p.assembly.GetAPIReader(), Writer: p.assembly.GetClient(), Leads: p.replicas.Leads, From: p.o.certificates.WebhookConfiguration}
	scrapes := http.NewServeMux()
	scrapes.Handle("/metrics", promhttp.HandlerFor(metrics.Registry, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError, MaxRequestsInFlight: maxScrapes}))
	all := []manager.Runnable{server, always(trust.Run)}
	for _, part := range p.certs.Parts {
		p.ready.RequireOnce(part.Ready)
		all = append(all, always(part.Run))
	}
	for flag, handler := range map[string]http.Handler{
		"health-probe-bind-address": p.ready.Probes(),
		"metrics-bind-address":      scrapes,
		"debug-bind-address":        telemetry.Debug(p.engine.InFlight, p.configuration),
	} {
		if listener := p.listeners[flag]; listener != nil {
			plain := plainServer(handler)
			plain.ErrorLog = errorLog(flag)
			if flag == "debug-bind-address" {
				plain.WriteTimeout = 0 // A profile takes half a minute or more.
			} else {
				listener = webhook.Limit(plain, listener)
			}
			all = append(all, &manager.Server{Name: flag, Server: plain, Listener: listener, ShutdownTimeout: &p.o.shutdownTimeout})
		}
	}
	return all
}

// policyCompiler compiles BindPolicies with the settings of the plugin, also if the plugin is off.
func (p *process) policyCompiler() *policyplugin.Compiler {
	o := policy.Options{BindTimeout: p.configuration.Budgets.PreBindTimeout.Duration}
	if a, ok := p.configuration.Arguments.Of(policyplugin.Name).(*policyplugin.Arguments); ok {
		o.KeyPrefixes = a.KeyPrefixes
	}
	return policyplugin.NewCompiler(o, p.client.Discovery())
}

// errorLog logs the connection errors of a server, such as failed handshakes, at V(2).
func errorLog(server string) *log.Logger {
	return slog.NewLogLogger(logr.ToSlogHandler(klog.Background().WithValues("server", server).V(2)), slog.LevelInfo)
}

// maxScrapes is the maximum number of scrapes at the same time. Each needs memory until its client has read it.
const maxScrapes = 8

// plainServer returns a server for short requests of anybody. It closes idle connections and slow headers after a second, so that they do
// not pile up.
func plainServer(handler http.Handler) *http.Server {
	return &http.Server{Handler: handler, ReadTimeout: time.Second, WriteTimeout: 10 * time.Second}
}
