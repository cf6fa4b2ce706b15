// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Command csi-driver is a CSI driver without storage, for tests: its volumes are entries in its memory. It implements
// the services that external-provisioner calls (Identity and Controller, with topology and capacity), and none for nodes, because
// the test control plane has no kubelet. Parameters of StorageClasses set its behavior, see cluster.StartCSI.
//
// The module also pins external-provisioner. Tests build its command from there, with the versions of its libraries, and without
// changes.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"k8s.io/utils/clock"
)

func main() {
	os.Exit(start())
}

// start runs until a signal or the end of the parent, and returns the exit code.
func start() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		return 1
	}
	return 0
}

func run(ctx context.Context, args []string) error {
	flags := pflag.NewFlagSet(args[0], pflag.ContinueOnError)
	socket := flags.String("csi-address", "", "Path of the Unix socket of the CSI services.")
	address := flags.String("http-address", "", "Address of /readyz and /volumes, such as 127.0.0.1:8081.")
	name := flags.String("driver", "", "Name of the CSI driver.")
	key := flags.String("topology-key", "", "Label of nodes with their zone.")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	d := newDriver(*name, *key, clock.RealClock{})
	// The socket of a killed process stays.
	if err := os.Remove(*socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove an old --csi-address: %w", err)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", *socket)
	if err != nil {
		return fmt.Errorf("listen on --csi-address: %w", err)
	}
	services := grpc.NewServer(grpc.UnaryInterceptor(logCalls))
	csi.RegisterIdentityServer(services, d)
	csi.RegisterControllerServer(services, d)
	observer := &http.Server{Addr: *address, Handler: d.handler(), ReadHeaderTimeout: 10 * time.Second}

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return services.Serve(listener) })
	group.Go(func() error {
		if err := observer.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve --http-address: %w", err)
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		services.Stop()
		return observer.Close()
	})
	return group.Wait()
}

// logCalls logs every call, so that a failed test shows them.
func logCalls(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	response, err := handle(ctx, request)
	slog.InfoContext(ctx, info.FullMethod, "request", request, "code", status.Code(err), "error", err)
	return response, err
}

// handler serves /readyz and, as JSON, /volumes.
func (d *driver) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("/volumes", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(d.list())
	})
	return mux
}
