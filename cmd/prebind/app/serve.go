// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"

	"github.com/spf13/cobra"
	cliflag "k8s.io/component-base/cli/flag"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // For --logging-format=json.
	"k8s.io/component-base/term"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/prebind/prebind/apiclient"
	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/binder/replica"
	"github.com/prebind/prebind/webhook"
	"github.com/prebind/prebind/webhook/certificates"
)

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
			if err := limitMemory(os.Getenv, debug.SetMemoryLimit); err != nil {
				return err
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
	shared := certificates.Shared{Clock: clock.RealClock{}, Log: klog.Background(), Metrics: certificates.NewMetrics()}
	certs, err := certificates.New(o.certificates, shared)
	if err != nil {
		return err
	}
	health := apiclient.NewHealth(clock.RealClock{})
	config, err := restConfig(o.kubeconfig, health)
	if err != nil {
		return err
	}
	if err := apiclient.Contact(config); err != nil {
		return err
	}
	open, err := o.listen(ctx)
	if err != nil {
		return err
	}
	defer open.close()

	// Only from here on libraries may log: what is wrong before is said in one line.
	ctrl.SetLogger(klog.Background())
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	mgr, err := newManager(running, config, o)
	if err != nil {
		return err
	}
	p := &process{o: o, id: replica.NewID(), config: config, health: health, mgr: mgr, ready: &readiness{}, open: open, certs: certs, certMetrics: shared.Metrics}
	for _, build := range []func(context.Context, *configuration) error{p.buildEngine, p.buildWatches, p.buildServers} {
		if err := build(ctx, c); err != nil {
			return err
		}
	}
	defer p.traces.Flush(ctx)
	defer context.AfterFunc(ctx, func() {
		defer stop()
		shutDown(running, o, p.ready, p.engine)
	})()
	klog.InfoS("Starting Prebind", "version", version, "replica", p.id, "webhook", open.webhook.Addr().String())
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
