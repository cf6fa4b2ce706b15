// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Command webhook is the baseline for measurements of Prebind: controller-runtime's webhook server with a handler that does
// nothing or adds a constant annotation. It can also cache pending pods, as a webhook does that needs the pod without
// reading it from the API server.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	prebindwebhook "github.com/prebind/prebind/webhook"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "webhook:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	fs := flag.NewFlagSet("webhook", flag.ContinueOnError)
	address := fs.String("bind-address", "127.0.0.1:9443", "Address and port to listen on.")
	certDir := fs.String("cert-dir", "", "Directory with tls.crt and tls.key.")
	annotation := fs.String("annotation", "", "Annotation to add to every Binding. Empty adds none.")
	kubeconfig := fs.String("kubeconfig", "", "Path to a kubeconfig file. If it is set, pending pods are cached.")
	allPods := fs.Bool("all-pods", false, "Cache all pods.")
	if err := fs.Parse(args); err != nil {
		return err
	}
	host, portText, err := net.SplitHostPort(*address)
	if err != nil {
		return fmt.Errorf("--bind-address: %w", err)
	}
	port, err := strconv.Atoi(portText)
	if err != nil {
		return fmt.Errorf("--bind-address: %w", err)
	}
	ctrl.SetLogger(logr.Discard())
	server := webhook.NewServer(webhook.Options{
		Host: host, Port: port, CertDir: *certDir,
		// HTTP/1.1 only, like Prebind and Kubebuilder projects.
		TLSOpts: []func(*tls.Config){func(c *tls.Config) { c.NextProtos = []string{"http/1.1"} }},
	})
	server.Register(prebindwebhook.Path, &webhook.Admission{Handler: handler(*annotation)})
	group, ctx := errgroup.WithContext(ctx)
	if *kubeconfig != "" {
		followed, err := follow(ctx, *kubeconfig, *allPods)
		if err != nil {
			return err
		}
		group.Go(func() error { return followed.Start(ctx) })
		if !followed.WaitForCacheSync(ctx) {
			return errors.New("cache of pods not synced")
		}
	}
	group.Go(func() error { return server.Start(ctx) })
	return group.Wait()
}

// follow returns a cache of pending pods, as in Prebind, or an ordinary cache of all pods.
func follow(ctx context.Context, kubeconfig string, allPods bool) (cache.Cache, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	o := cache.Options{Scheme: clientgoscheme.Scheme}
	if !allPods {
		o.DefaultTransform = cache.TransformStripManagedFields()
		o.ByObject = map[client.Object]cache.ByObject{&corev1.Pod{}: {Field: fields.OneTermEqualSelector("spec.nodeName", "")}}
	}
	pods, err := cache.New(config, o)
	if err != nil {
		return nil, err
	}
	_, err = pods.GetInformer(ctx, &corev1.Pod{}, cache.BlockUntilSynced(false))
	return pods, err
}

func handler(annotation string) admission.HandlerFunc {
	return func(context.Context, admission.Request) admission.Response {
		if annotation == "" {
			return admission.Allowed("")
		}
		return admission.Patched("", webhook.JSONPatchOp{
			Operation: "add", Path: "/metadata/annotations", Value: map[string]string{annotation: "1"},
		})
	}
}
