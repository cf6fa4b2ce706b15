// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package certificates

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Options select the source of the serving certificate and restrict the callers of the webhook. AddFlags sets the defaults.
type Options struct {
	// Dir is the directory with tls.crt and tls.key. It is ignored if SelfManaged is set.
	Dir string
	// SelfManaged makes Prebind create its certificates. It needs the names of the Service through which the API server
	// calls the webhook, and of the MutatingWebhookConfiguration.
	SelfManaged          bool
	Service              string
	WebhookConfiguration string
	// CAValidity and CertValidity are the validity of a self-managed CA and of a serving certificate. Both are renewed
	// after two thirds of that time. Overlap is the time for which API servers trust a CA before it signs. It must be longer
	// than a watch event needs to reach every API server.
	CAValidity, CertValidity, Overlap time.Duration

	// ClientCAFile is a PEM file with the CAs of callers. If it is empty, every client may call.
	ClientCAFile string
	// ClientNames are the allowed common names of callers. If it is empty, every name is allowed. It requires
	// ClientCAFile.
	ClientNames []string
}

const defaultDir = "/etc/prebind/tls"

// AddFlags adds the flags to fs, and sets the options to their defaults.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.Dir, "cert-dir", defaultDir, "Directory with the webhook's certificate, tls.crt, and its key, tls.key, such as a mounted Secret. Changed files are reloaded.")
	fs.BoolVar(&o.SelfManaged, "self-managed-certs", false, "Create the webhook's certificates without files: a CA in the Secret "+SecretName+" of --namespace, which Prebind writes into the webhook configuration, and a certificate for each replica. Prebind renews both before they expire.")
	fs.StringVar(&o.Service, "webhook-service", "prebind-webhook", "Service in --namespace through which the API server calls the webhook, for --self-managed-certs.")
	fs.StringVar(&o.WebhookConfiguration, "webhook-configuration", "prebind", "MutatingWebhookConfiguration that Prebind writes the CA into, for --self-managed-certs.")
	fs.DurationVar(&o.CAValidity, "self-managed-ca-validity", 365*24*time.Hour, "Validity of a self-managed CA, which is replaced after two thirds of it.")
	fs.DurationVar(&o.CertValidity, "self-managed-cert-validity", 7*24*time.Hour, "Validity of a self-managed certificate, which is renewed after two thirds of it. An earlier CA stays trusted for the same time.")
	fs.DurationVar(&o.Overlap, "self-managed-ca-overlap", time.Minute, "Time for which the API servers trust a new self-managed CA before it signs anything.")
	fs.StringVar(&o.ClientCAFile, "client-ca-file", "", "PEM file with CAs. Callers of the webhook need a client certificate of one of them; see docs/certificates.md. Prebind reloads a changed file. If empty, every client that can reach the port can call.")
	fs.StringSliceVar(&o.ClientNames, "client-allowed-names", nil, "Allowed common names of client certificates. Empty allows every name that the CA has signed. The CA of the cluster also signs certificates of kubelets and users, so set the name of the API server.")
}

// Validate returns an error for each problem of the flags. It does not read files.
func (o *Options) Validate() []error {
	var problems []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			problems = append(problems, fmt.Errorf(format, args...))
		}
	}
	check(o.Dir != "" || o.SelfManaged, "--cert-dir: must be a directory with tls.crt and tls.key")
	check(!o.SelfManaged || o.Dir == defaultDir, "--self-managed-certs and --cert-dir are mutually exclusive")
	if o.SelfManaged {
		wrong := validation.IsDNS1035Label(o.Service)
		check(len(wrong) == 0, "--webhook-service: %q is not a valid Service name: %s", o.Service, strings.Join(wrong, "; "))
		wrong = validation.IsDNS1123Subdomain(o.WebhookConfiguration)
		check(len(wrong) == 0, "--webhook-configuration: %q is not a valid name: %s", o.WebhookConfiguration, strings.Join(wrong, "; "))
		// A rotation needs time for each of its steps.
		check(o.Overlap >= time.Second, "--self-managed-ca-overlap: must be at least 1s, got %s", o.Overlap)
		check(o.CertValidity >= 4*o.Overlap, "--self-managed-cert-validity: must be at least four times --self-managed-ca-overlap (%s), got %s", o.Overlap, o.CertValidity)
		check(o.CAValidity >= 4*o.CertValidity, "--self-managed-ca-validity: must be at least four times --self-managed-cert-validity (%s), got %s", o.CertValidity, o.CAValidity)
	}
	check(len(o.ClientNames) == 0 || o.ClientCAFile != "", "--client-allowed-names: requires --client-ca-file")
	return problems
}
