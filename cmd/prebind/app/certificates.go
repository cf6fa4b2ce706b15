// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"fmt"

	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/prebind/prebind/certificates"
	"github.com/prebind/prebind/webhook"
)

// certificateOptions say where the webhook's certificate comes from, and who may
// call the webhook.
type certificateOptions struct {
	dir string

	clientCAFile string
	clientNames  []string
}

func defaultCertificateOptions() certificateOptions {
	return certificateOptions{dir: "/etc/prebind/tls"}
}

func (o *certificateOptions) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.dir, "cert-dir", o.dir, "Folder with the webhook's certificate, tls.crt, and its key, tls.key, as a mounted Secret has them. They are read again when they change.")
	fs.StringVar(&o.clientCAFile, "client-ca-file", o.clientCAFile, "File with the CA, or several, in PEM, of which a caller of the webhook must have a client certificate. It is read again when it changes. The API server must be configured to show one; see docs/certificates.md. Without this flag, anybody who can reach the port can call.")
	fs.StringSliceVar(&o.clientNames, "client-allowed-names", o.clientNames, "Common names, of which a caller's certificate must have one. Empty is any name that the CA has signed: with the cluster's own CA that is every kubelet and every user with a certificate, so name that of the API server.")
}

// validate says what is wrong with the flags alone.
func (o *certificateOptions) validate(check func(ok bool, format string, args ...any)) {
	check(o.dir != "", "--cert-dir: a folder with tls.crt and tls.key is needed")
	check(len(o.clientNames) == 0 || o.clientCAFile != "", "--client-allowed-names: it takes --client-ca-file, which says whose names these are")
}

// certs are the certificates of a running webhook. As a runnable of the manager
// they are kept up to date.
type certs struct {
	tls     webhook.TLS
	metrics *certificates.Metrics
	runs    []manager.Runnable
}

// read reads the files. What is wrong with them is an error that names the flag.
func (o *certificateOptions) read() (*certs, error) {
	c := &certs{metrics: certificates.NewMetrics()}
	shared := certificates.Options{Clock: clock.RealClock{}, Log: klog.Background(), Metrics: c.metrics}
	files, err := certificates.NewFiles(o.dir, shared)
	if err != nil {
		return nil, fmt.Errorf("--cert-dir: %w", err)
	}
	c.tls.GetCertificate = files.GetCertificate
	c.runs = append(c.runs, files)
	if o.clientCAFile != "" {
		clients, err := certificates.NewClients(o.clientCAFile, shared)
		if err != nil {
			return nil, fmt.Errorf("--client-ca-file: %w", err)
		}
		c.tls.ClientCAs, c.tls.ClientNames = clients.Pool, o.clientNames
		c.runs = append(c.runs, clients)
	}
	return c, nil
}

// Start implements manager.Runnable.
func (c *certs) Start(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, run := range c.runs {
		group.Go(func() error { return run.Start(ctx) })
	}
	return group.Wait()
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (*certs) NeedLeaderElection() bool { return false }
