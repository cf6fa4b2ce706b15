// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/certificates"
	"github.com/prebind/prebind/certificates/selfmanaged"
	"github.com/prebind/prebind/webhook"
)

// certificateOptions say where the webhook's certificate comes from, and who may
// call the webhook.
type certificateOptions struct {
	dir string
	// dirGiven says that the flag was given.
	dirGiven func() bool

	selfManaged          bool
	service              string
	webhookConfiguration string
	caValidity           time.Duration
	certValidity         time.Duration
	overlap              time.Duration

	clientCAFile string
	clientNames  []string
}

func defaultCertificateOptions() certificateOptions {
	return certificateOptions{
		dir:                  "/etc/prebind/tls",
		dirGiven:             func() bool { return false },
		service:              "prebind-webhook",
		webhookConfiguration: "prebind",
		caValidity:           selfmanaged.DefaultCAValidity,
		certValidity:         selfmanaged.DefaultCertValidity,
		overlap:              selfmanaged.DefaultOverlap,
	}
}

func (o *certificateOptions) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.dir, "cert-dir", o.dir, "Folder with the webhook's certificate, tls.crt, and its key, tls.key, as a mounted Secret has them. They are read again when they change.")
	o.dirGiven = func() bool { return fs.Changed("cert-dir") }
	fs.BoolVar(&o.selfManaged, "self-managed-certs", o.selfManaged, "Make the webhook's certificates without files: a CA in the Secret "+selfmanaged.SecretName+" of --namespace, which is written into the webhook configuration, and a certificate for each replica. Both are renewed in time, without a gap.")
	fs.StringVar(&o.service, "webhook-service", o.service, "Service, in --namespace, by which the API server calls the webhook, for --self-managed-certs.")
	fs.StringVar(&o.webhookConfiguration, "webhook-configuration", o.webhookConfiguration, "MutatingWebhookConfiguration that is told of the CA, for --self-managed-certs.")
	fs.DurationVar(&o.caValidity, "self-managed-ca-validity", o.caValidity, "How long a self-managed CA is valid. It is changed when two thirds of that are over.")
	fs.DurationVar(&o.certValidity, "self-managed-cert-validity", o.certValidity, "How long a self-managed certificate is valid. It is renewed when two thirds of that are over. An earlier CA stays trusted for as long.")
	fs.DurationVar(&o.overlap, "self-managed-ca-overlap", o.overlap, "How long the API servers are told of a self-managed CA before anything is signed by it. It should be longer than the slowest of them takes to hear of a change.")
	fs.StringVar(&o.clientCAFile, "client-ca-file", o.clientCAFile, "File with the CA, or several, in PEM, of which a caller of the webhook must have a client certificate. It is read again when it changes. The API server must be configured to show one; see docs/certificates.md. Without this flag, anybody who can reach the port can call.")
	fs.StringSliceVar(&o.clientNames, "client-allowed-names", o.clientNames, "Common names, of which a caller's certificate must have one. Empty is any name that the CA has signed: with the cluster's own CA that is every kubelet and every user with a certificate, so name that of the API server.")
}

// validate says what is wrong with the flags alone.
func (o *certificateOptions) validate(check func(ok bool, format string, args ...any)) {
	check(o.dir != "" || o.selfManaged, "--cert-dir: a folder with tls.crt and tls.key is needed")
	check(!o.selfManaged || !o.dirGiven(), "--self-managed-certs and --cert-dir: the certificate comes from one of them")
	if o.selfManaged {
		wrong := validation.IsDNS1035Label(o.service)
		check(len(wrong) == 0, "--webhook-service: %q is no Service: %s", o.service, strings.Join(wrong, "; "))
		wrong = validation.IsDNS1123Subdomain(o.webhookConfiguration)
		check(len(wrong) == 0, "--webhook-configuration: %q is no name: %s", o.webhookConfiguration, strings.Join(wrong, "; "))
		err := selfmanaged.CheckLives(o.caValidity, o.certValidity, o.overlap)
		check(err == nil, "--self-managed-ca-validity, --self-managed-cert-validity, --self-managed-ca-overlap: %w", err)
	}
	check(len(o.clientNames) == 0 || o.clientCAFile != "", "--client-allowed-names: it takes --client-ca-file, which says whose names these are")
}

// permissions are those of self-managed certificates, as shipped but for the name
// that a flag gives.
func (o *certificateOptions) permissions(namespace string) ([]Permission, error) {
	shipped, err := framework.Shipped("certificates/self-managed")
	all := allOf(shipped, namespace)
	for i := range all {
		if all[i].Resource == "mutatingwebhookconfigurations" {
			all[i].Name = o.webhookConfiguration
		}
	}
	return all, err
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
	if !o.selfManaged {
		files, err := certificates.NewFiles(o.dir, shared)
		if err != nil {
			return nil, fmt.Errorf("--cert-dir: %w", err)
		}
		c.tls.GetCertificate = files.GetCertificate
		c.runs = append(c.runs, files)
	}
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

// manage adds the certificates that Prebind makes itself, where it does, and lets
// readiness wait for the first.
func (c *certs) manage(ctx context.Context, o *certificateOptions, client kubernetes.Interface, namespace string, ready *readiness) error {
	if !o.selfManaged {
		return nil
	}
	permissions, err := o.permissions(namespace)
	if err == nil {
		err = grants{client}.checkAll(ctx, []needs{{of: "--self-managed-certs", advice: "apply the component certificates/self-managed", permissions: permissions}})
	}
	if err != nil {
		return err
	}
	m, err := selfmanaged.New(selfmanaged.Options{
		Client:        client,
		Namespace:     namespace,
		Service:       o.service,
		Configuration: o.webhookConfiguration,
		CAValidity:    o.caValidity,
		CertValidity:  o.certValidity,
		Overlap:       o.overlap,
		Clock:         clock.RealClock{},
		Log:           klog.Background(),
		Metrics:       c.metrics,
	})
	if err != nil {
		return fmt.Errorf("--self-managed-certs: %w", err)
	}
	c.tls.GetCertificate = m.GetCertificate
	c.runs = append(c.runs, m)
	ready.waitUntil(m.Ready)
	return nil
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
