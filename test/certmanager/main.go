// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Command certmanager runs cert-manager: the controllers for Certificates of Issuers with a CA or a self-signed certificate, and
// the CA injector for webhook configurations. The Go module proxy does not contain cert-manager's own commands. This command starts
// the same packages in the same way, in one process. It omits leader election, ACME and other Issuers, and cert-manager's webhook,
// which validates API objects.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/cert-manager/cert-manager/pkg/api"
	"github.com/cert-manager/cert-manager/pkg/controller"
	"github.com/cert-manager/cert-manager/pkg/controller/cainjector"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/approver" // Like the next imports, registers itself.
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/ca"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/selfsigned"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/issuing"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/keymanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/readiness"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/requestmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/revisionmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/trigger"
	_ "github.com/cert-manager/cert-manager/pkg/controller/issuers"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/ca"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/selfsigned"
	"github.com/cert-manager/cert-manager/pkg/util"
	"github.com/cert-manager/cert-manager/pkg/util/feature"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// Defaults of cert-manager's commands.
const (
	workers    = 5
	minBackoff = time.Hour
	maxBackoff = 32 * time.Hour
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
	feature.DefaultMutableFeatureGate.AddFlag(flags)
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	ctrl.SetLogger(klog.Background())
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return fmt.Errorf("read --kubeconfig: %w", err)
	}
	mgr, err := injector(ctx, config, *address)
	if err != nil {
		return fmt.Errorf("set up the CA injector: %w", err)
	}
	if err := addControllers(ctx, mgr, *kubeconfig); err != nil {
		return err
	}
	return mgr.Start(ctx)
}

// injector returns a manager with the CA injector of webhook configurations.
func injector(ctx context.Context, config *rest.Config, address string) (manager.Manager, error) {
	config = util.RestConfigWithUserAgent(config, "cainjector")
	config.QPS = -1 // API Priority and Fairness limits the rate.
	types := runtime.NewScheme()
	if err := errors.Join(api.AddToScheme(types), scheme.AddToScheme(types)); err != nil {
		return nil, err
	}
	mgr, err := ctrl.NewManager(config, manager.Options{
		Scheme:                 types,
		Client:                 client.Options{Cache: &client.CacheOptions{DisableFor: []client.Object{&corev1.Secret{}}}},
		Metrics:                server.Options{BindAddress: "0"},
		HealthProbeBindAddress: address,
	})
	if err != nil {
		return nil, err
	}
	if err := mgr.AddReadyzCheck("ping", healthz.Ping); err != nil {
		return nil, err
	}
	return mgr, cainjector.RegisterAllInjectors(ctx, mgr, cainjector.SetupOptions{
		EnableCertificatesDataSource: true,
		EnabledReconcilersFor: map[string]bool{
			cainjector.MutatingWebhookConfigurationName:   true,
			cainjector.ValidatingWebhookConfigurationName: true,
		},
	})
}

// addControllers adds every imported controller of Issuers, Certificates and CertificateRequests.
func addControllers(ctx context.Context, mgr manager.Manager, kubeconfig string) error {
	factory, err := controller.NewContextFactory(ctx, controller.ContextOptions{
		Kubeconfig: kubeconfig,
		CertificateOptions: controller.CertificateOptions{
			CopiedAnnotationPrefixes:                 []string{"*", "-kubectl.kubernetes.io/"},
			CertificateRequestMinimumBackoffDuration: minBackoff,
			CertificateRequestMaximumBackoffDuration: maxBackoff,
		},
	})
	if err != nil {
		return fmt.Errorf("set up the controllers: %w", err)
	}
	for name, construct := range controller.Known() {
		c, err := construct(factory)
		if err != nil {
			return fmt.Errorf("set up controller %s: %w", name, err)
		}
		if err := mgr.Add(manager.RunnableFunc(func(ctx context.Context) error { return c.Run(workers, ctx) })); err != nil {
			return fmt.Errorf("add controller %s: %w", name, err)
		}
	}
	// All contexts of the factory share the informers.
	shared, err := factory.Build()
	if err != nil {
		return fmt.Errorf("set up the informers: %w", err)
	}
	shared.SharedInformerFactory.Start(ctx.Done())
	shared.KubeSharedInformerFactory.Start(ctx.Done())
	return nil
}
