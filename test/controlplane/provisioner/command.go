// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package provisioner

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"
)

// DefaultName is the name that StorageClasses use to ask for this provisioner.
const DefaultName = "test.prebind.dev"

const (
	// workers is how many claims can be provisioned at once: enough for the crowd of
	// BenchmarkDelayOfACrowd, so that each takes only its own delay.
	workers = 1000
	// retryFirst and retryMost bound the pause before a failed call is repeated.
	// The library's own 15 seconds would only make tests slow.
	retryFirst = time.Second
	retryMost  = 10 * time.Second
)

// options are the command's flags.
type options struct {
	kubeconfig string
	name       string
	health     string
}

// NewCommand returns the test provisioner's command. It runs until it gets
// SIGTERM or SIGINT.
func NewCommand() *cobra.Command {
	o := options{}
	cmd := &cobra.Command{
		Use:          "test-provisioner",
		Short:        "Provision volumes that do not exist, as slowly as a test asks for",
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			return run(ctx, o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "file with the API server's address and this provisioner's credentials (default: in-cluster)")
	f.StringVar(&o.name, "provisioner", DefaultName, "name that StorageClasses refer to, and the CSI driver's name in the volumes")
	f.StringVar(&o.health, "health-bind-address", "", "address of /readyz, such as 127.0.0.1:8080; empty serves none")
	return cmd
}

func run(ctx context.Context, o options) error {
	config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return fmt.Errorf("read --kubeconfig: %w", err)
	}
	// A burst of claims should wait for their delay, not for the client.
	config.QPS, config.Burst = 200, 400
	client, err := kubernetes.NewForConfig(rest.AddUserAgent(config, "test-provisioner"))
	if err != nil {
		return fmt.Errorf("make a client from --kubeconfig: %w", err)
	}
	ctrl := controller.NewProvisionController(ctx, client, o.name,
		&provisioner{driver: o.name, nodes: client.CoreV1().Nodes()},
		controller.LeaderElection(false),
		controller.Threadiness(workers),
		controller.AddFinalizer(true),
		controller.MetricsPort(0),
		controller.RateLimiter(workqueue.NewTypedItemExponentialFailureRateLimiter[string](retryFirst, retryMost)),
	)
	if o.health != "" {
		stop, err := serveHealth(ctx, o.health, ctrl.HasRun)
		if err != nil {
			return err
		}
		defer stop()
	}
	ctrl.Run(ctx)
	return nil
}

// serveHealth answers /readyz until stop is called.
func serveHealth(ctx context.Context, address string, ready func() bool) (stop func(), err error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen on --health-bind-address: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !ready() {
			http.Error(w, "the controller has not started", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	return func() {
		_ = server.Close()
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			fmt.Println("health server:", err)
		}
	}, nil
}
