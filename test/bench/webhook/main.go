// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Command webhook is what Prebind's webhook is measured beside: controller-runtime's
// server, with a handler that does nothing, or that adds one constant annotation.
package main

import (
	"context"
	"crypto/tls"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"
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
	address := fs.String("bind-address", "127.0.0.1:9443", "Where to listen.")
	certDir := fs.String("cert-dir", "", "Folder with tls.crt and tls.key.")
	annotation := fs.String("annotation", "", "Annotation that every Binding gets; none if it is empty.")
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
		// As Prebind's, and as projects made by Kubebuilder have it.
		TLSOpts: []func(*tls.Config){func(c *tls.Config) { c.NextProtos = []string{"http/1.1"} }},
	})
	server.Register(prebindwebhook.Path, &webhook.Admission{Handler: handler(*annotation)})
	return server.Start(ctx)
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
