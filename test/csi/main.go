// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Command csi-driver is a CSI driver without storage, for tests: its volumes are entries in its memory. It implements
// the services that external-provisioner calls (Identity and Controller, with topology and capacity), and none for nodes, because
// the test control plane has no kubelet. See cluster.StartCSI.
//
// The module also pins external-provisioner. Tests build its command from there, with the versions of its libraries, and without
// changes.
package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
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
	name := flags.String("driver", "", "Name of the CSI driver.")
	key := flags.String("topology-key", "", "Label of nodes with their zone.")
	zones := flags.StringToInt64("zones", nil, "Bytes of storage in each zone, such as zone-a=1073741824.")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	// The socket of a killed process stays.
	if err := os.Remove(*socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove an old --csi-address: %w", err)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", *socket)
	if err != nil {
		return fmt.Errorf("listen on --csi-address: %w", err)
	}
	d := &driver{name: *name, key: *key, zones: *zones, volumes: map[string]volume{}}
	services := grpc.NewServer(grpc.UnaryInterceptor(logCalls))
	csi.RegisterIdentityServer(services, d)
	csi.RegisterControllerServer(services, d)
	context.AfterFunc(ctx, services.Stop)
	return services.Serve(listener)
}

// logCalls logs every call, so that a failed test shows them.
func logCalls(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	response, err := handle(ctx, request)
	slog.InfoContext(ctx, info.FullMethod, "request", request, "code", status.Code(err), "error", err)
	return response, err
}
