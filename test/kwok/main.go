// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Command kwok runs the controller of sigs.k8s.io/kwok. It acts as the kubelet of all nodes: bound pods become
// Running and Ready, pods of Jobs complete, and deleted pods disappear. It does not change nodes.
package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/clock"
	"sigs.k8s.io/kwok/pkg/kwok/controllers"
	"sigs.k8s.io/kwok/pkg/log"
)

// Addresses for pods and nodes. They are outside the range of the Services of the test control plane.
const (
	podRange = "10.64.0.0/10"
	nodeIP   = "192.0.2.1"
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
	kubeconfig := flags.String("kubeconfig", "", "Path to a kubeconfig file.")
	address := flags.String("health-bind-address", "", "Address of /readyz, such as 127.0.0.1:8081.")
	delay := flags.Duration("start-delay", 0, "Time from the bind of a pod until it is Running and Ready. The annotation "+delayAnnotation+" of a pod overrides it.")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	pods, err := podStages(*delay)
	if err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return fmt.Errorf("read --kubeconfig: %w", err)
	}
	config.RateLimiter = flowcontrol.NewFakeAlwaysRateLimiter()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	ctx = log.NewContext(ctx, log.NewLogger(os.Stderr, log.LevelInfo))
	controller, err := controllers.NewController(controllers.Config{
		Clock:                    clock.RealClock{},
		TypedClient:              client,
		ManageAllNodes:           true,
		CIDR:                     podRange,
		NodeIP:                   nodeIP,
		LocalStages:              localStages(pods),
		PodPlayStageParallelism:  16,
		NodePlayStageParallelism: 1,
		// Pods that are bound before their node is known are listed per node.
		PodsOnNodeSyncParallelism: 4,
	})
	if err != nil {
		return err
	}
	if err := controller.Start(ctx); err != nil {
		return err
	}
	return serve(ctx, *address)
}

// serve answers /readyz until ctx ends.
func serve(ctx context.Context, address string) error {
	mux := http.NewServeMux()
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	server := &http.Server{Addr: address, Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- server.ListenAndServe() }()
	select {
	case err := <-failed:
		return fmt.Errorf("serve --health-bind-address: %w", err)
	case <-ctx.Done():
		return server.Close()
	}
}
