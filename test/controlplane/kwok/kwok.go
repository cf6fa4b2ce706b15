// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kwok runs the controller of sigs.k8s.io/kwok. It acts as the kubelet of all nodes: bound pods become
// Running and Ready, pods of Jobs complete, and deleted pods disappear. It does not change nodes.
package kwok

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
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

// NewCommand returns the command. It runs until SIGTERM or SIGINT.
func NewCommand() *cobra.Command {
	var (
		kubeconfig, address string
		delay               time.Duration
	)
	cmd := &cobra.Command{
		Use:          "kwok",
		Short:        "Act as the kubelet of all nodes",
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return run(ctx, kubeconfig, address, delay)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&kubeconfig, "kubeconfig", "", "Path to a kubeconfig file.")
	flags.StringVar(&address, "health-bind-address", "", "Address of /readyz, such as 127.0.0.1:8081.")
	flags.DurationVar(&delay, "start-delay", 0, "Time from the bind of a pod until it is Running and Ready. The annotation "+delayAnnotation+" of a pod overrides it.")
	return cmd
}

func run(ctx context.Context, kubeconfig, address string, delay time.Duration) error {
	pods, err := podStages(delay)
	if err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
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
	return serve(ctx, address)
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
