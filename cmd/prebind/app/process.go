// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"crypto/tls"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"

	"github.com/go-logr/logr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/prebind/prebind/apiclient"
	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/replica"
	"github.com/prebind/prebind/telemetry"
	"github.com/prebind/prebind/webhook"
	"github.com/prebind/prebind/webhook/certificates"
)

// process is a replica that is being put together: each build method adds to the
// manager what it has made, and the next ones may use it.
type process struct {
	o      *serveOptions
	id     string
	config *rest.Config
	health *apiclient.Health
	mgr    manager.Manager
	ready  *readiness
	open   *listeners
	certs  *certificates.Source
	// certMetrics are those of certs.
	certMetrics *certificates.Metrics

	client kubernetes.Interface
	// leases is for leases only.
	leases   kubernetes.Interface
	replicas *replica.Replicas
	traces   *telemetry.Traces
	recorder *telemetry.Recorder
	assembly *assembly
	engine   *binder.Engine
	reloads  *reloader
}

// buildEngine makes the engine of the configuration.
func (p *process) buildEngine(ctx context.Context, c *configuration) error {
	var err error
	if p.client, err = kubernetes.NewForConfig(p.config); err != nil {
		return fmt.Errorf("setting up: %w", err)
	}
	if p.traces, err = p.o.tracing.start(ctx, p.id); err != nil {
		return err
	}
	if p.recorder, err = newRecorder(metrics.Registry, p.certMetrics, p.traces, p.o.registry.pluginNames()...); err != nil {
		return err
	}
	p.assembly = newAssembly(p.mgr, p.o, p.ready, grants{p.client}, p.recorder)
	settings, err := p.assembly.settings(ctx, c.settings)
	if err != nil {
		return err
	}
	if err := p.buildReplicas(); err != nil {
		return err
	}
	if p.engine, err = binder.New(binder.Options{
		Cached:   p.mgr.GetCache(),
		Live:     p.mgr.GetAPIReader(),
		Settings: settings,
		Replica:  p.id,
		Term:     p.replicas.Term,
		Domain:   framework.Domain,
		Changes:  p.assembly.changes,
		Events:   p.mgr.GetEventRecorder("prebind"),
		Recorder: p.recorder,
		Clock:    clock.RealClock{},
	}); err != nil {
		return err
	}
	p.recorder.Show(p.engine.Stats, p.ready.probe)
	return nil
}

// buildWatches adds what watches the permissions, the configuration file, the other
// replicas, and what attempts have left behind.
func (p *process) buildWatches(_ context.Context, c *configuration) error {
	p.reloads = newReloader(p.o, p.assembly, p.engine, p.recorder, c)
	p.ready.require(p.health.Problem)
	permissions := everyReplica(func(ctx context.Context) error {
		p.health.Watch(ctx, p.checkPermissions)
		return nil
	})
	sweeper := binder.NewSweeper(p.engine, p.replicas)
	elected := sweeping(sweeper)
	if p.o.leaderElect {
		elected = func(ctx context.Context) error { return replica.Lead(ctx, p.leases, p.o.namespace, p.id, sweeper.Run) }
	}
	return p.add(permissions, p.reloads, p.replicas, newExemption(p.client, p.engine), elected, sweeping(binder.NewOwnSweeper(p.engine)))
}

// checkPermissions returns which permissions the configuration in force lacks.
func (p *process) checkPermissions(ctx context.Context) error {
	parts, err := needsOf(p.reloads.inForce.Load().settings, p.o.namespace)
	if err != nil {
		return err
	}
	return grants{p.client}.checkAll(ctx, parts)
}

// sweeping runs the sweeper in every replica.
func sweeping(sweeper *binder.Sweeper) everyReplica {
	return func(ctx context.Context) error {
		sweeper.Run(ctx)
		return nil
	}
}

// everyReplica is a runnable that needs no leader election of the manager's.
type everyReplica func(ctx context.Context) error

// Start implements manager.Runnable.
func (f everyReplica) Start(ctx context.Context) error { return f(ctx) }

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (everyReplica) NeedLeaderElection() bool { return false }

// buildReplicas makes this replica's lease. It is kept only when everything that its
// status tells of is built.
func (p *process) buildReplicas() error {
	var err error
	if p.leases, err = apiclient.NewWithTimeout(p.config, replica.RequestTakes); err != nil {
		return err
	}
	p.replicas, err = replica.New(replica.Options{
		ID: p.id, Client: p.leases, Namespace: p.o.namespace, Clock: clock.RealClock{},
		Status: func() (string, error) { return statusOf(p.engine, p.o, p.ready, p.id, p.reloads.inForce.Load)() },
	})
	if err == nil {
		p.ready.require(p.replicas.Held)
	}
	return err
}

// buildServers adds the certificates and everything that listens.
func (p *process) buildServers(ctx context.Context, _ *configuration) error {
	handler, err := webhook.NewHandler(webhook.Options{
		Engine: p.engine, Ready: p.ready.check, Log: klog.Background(), Clock: clock.RealClock{}, Domain: framework.Domain,
	})
	if err != nil {
		return err
	}
	required, err := needsOfCertificates(p.o.certificates, p.o.namespace)
	if err == nil {
		err = grants{p.client}.checkAll(ctx, required)
	}
	if err == nil {
		err = p.certs.Manage(p.client, p.o.namespace)
	}
	if err != nil {
		return err
	}
	p.ready.waitUntil(p.certs.Ready)
	limits, err := webhook.NewLimits(webhook.LimitOptions{Clock: clock.RealClock{}, Refused: p.recorder.RequestRefused})
	if err != nil {
		return err
	}
	server, err := webhook.NewServer(webhook.ServerOptions{
		Listener: p.open.webhook, TLSOpts: []func(*tls.Config){p.certs.Configure}, Limits: limits,
		ShutdownTimeout: p.o.shutdownTimeout, ErrorLog: errorLog("webhook"),
	})
	if err != nil {
		return err
	}
	server.Register(webhook.Path, webhook.OnlyFrom(p.o.certificates.ClientNames, p.recorder.Handler(handler)))
	all := []manager.Runnable{
		p.certs,
		server,
		p.server("probes", p.open.probes, probeServer(p.ready.probe)),
	}
	if p.open.debug != nil {
		from := debugSources{inFlight: p.engine.InFlight, config: p.reloads.inForce.Load}
		all = append(all, p.server("debug", p.open.debug, debugServer(from)))
	}
	return p.add(all...)
}

func (p *process) add(runnables ...manager.Runnable) error {
	for _, r := range runnables {
		if err := p.mgr.Add(r); err != nil {
			return err
		}
	}
	return nil
}

// errorLog logs errors of a server's connections, such as failed handshakes, at V(2).
func errorLog(server string) *log.Logger {
	return slog.NewLogLogger(logr.ToSlogHandler(klog.Background().WithValues("server", server).V(2)), slog.LevelInfo)
}

// server returns a Runnable that serves until the manager stops.
func (p *process) server(name string, listener net.Listener, server *http.Server) *manager.Server {
	server.ErrorLog = errorLog(name)
	return &manager.Server{Name: name, Server: server, Listener: listener, ShutdownTimeout: &p.o.shutdownTimeout}
}
