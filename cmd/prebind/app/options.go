// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation"
	cliflag "k8s.io/component-base/cli/flag"
	logsapi "k8s.io/component-base/logs/api/v1"

	"github.com/prebind/prebind/webhook/certificates"
)

const (
	defaultNamespace = "prebind-system"
)

// serveOptions are the flags of prebind serve.
type serveOptions struct {
	// registry is all that is compiled in.
	registry *registry
	// settings are what may be in the configuration file as well: here, as the flags
	// alone say.
	settings *settings
	// given are the flags as they were parsed.
	given *pflag.FlagSet

	kubeconfig      string
	webhookAddress  string
	certificates    certificates.Options
	metricsAddress  string
	healthAddress   string
	namespace       string
	podName         string
	leaderElect     bool
	configFile      string
	shutdownDelay   time.Duration
	shutdownTimeout time.Duration
	debug           debugOptions
	tracing         tracingOptions
	logging         *logsapi.LoggingConfiguration
}

// defaultServeOptions are the defaults, with what the options compile in besides.
func defaultServeOptions(options ...Option) *serveOptions {
	o := &serveOptions{
		webhookAddress:  ":9443",
		certificates:    certificates.DefaultOptions(),
		metricsAddress:  ":8080",
		healthAddress:   ":8081",
		namespace:       defaultNamespace,
		leaderElect:     true,
		shutdownDelay:   5 * time.Second,
		shutdownTimeout: 15 * time.Second,
		logging:         logsapi.NewLoggingConfiguration(),
	}
	o.register(options...)
	return o
}

// register makes the registry: what Prebind brings, then what the options add.
func (o *serveOptions) register(options ...Option) {
	o.registry = &registry{mutators: RegisteredMutators(), plugins: RegisteredPlugins()}
	for _, option := range options {
		option(o.registry)
	}
	o.settings = defaultSettings(o.registry)
}

// flags returns the flags by section, bound to the options.
func (o *serveOptions) flags() cliflag.NamedFlagSets {
	var sets cliflag.NamedFlagSets

	fs := sets.FlagSet("Serving")
	fs.StringVar(&o.kubeconfig, "kubeconfig", o.kubeconfig, "File with the way to the API server. Without it, Prebind must run in a pod.")
	fs.StringVar(&o.webhookAddress, "webhook-bind-address", o.webhookAddress, "Address and port of the webhook (HTTPS).")
	fs.StringVar(&o.metricsAddress, "metrics-bind-address", o.metricsAddress, "Address and port of /metrics (HTTP). 0 switches it off.")
	fs.StringVar(&o.healthAddress, "health-probe-bind-address", o.healthAddress, "Address and port of /healthz and /readyz (HTTP).")
	fs.DurationVar(&o.shutdownDelay, "shutdown-delay", o.shutdownDelay, "How long after SIGTERM new calls are still answered, with HTTP 503, so that the API server turns to another replica. It should be longer than the cluster takes to take a pod out of a Service.")
	fs.DurationVar(&o.shutdownTimeout, "shutdown-timeout", o.shutdownTimeout, "How long the calls under way may take to end then.")

	o.debug.addFlags(sets.FlagSet("Seeing"))
	o.tracing.addFlags(sets.FlagSet("Seeing"))
	o.certificates.AddFlags(sets.FlagSet("Certificates"))

	fs = sets.FlagSet("Replicas")
	fs.StringVar(&o.namespace, "namespace", o.namespace, "Namespace of Prebind's own objects: the leases by which replicas know of each other.")
	fs.StringVar(&o.podName, "pod-name", o.podName, "Name of the pod that this is, in --namespace: events about Prebind itself are about it. Without it, they are about the namespace.")
	fs.BoolVar(&o.leaderElect, "leader-elect", o.leaderElect, "Let one replica at a time bring to an end what replicas that are gone left behind. Without it, every replica does so.")

	fs = sets.FlagSet("Configuration")
	fs.StringVar(&o.configFile, "config", o.configFile, "File with a PrebindConfiguration; 'prebind config defaults' prints one. It is read again when it changes: what is wrong with it then is told, and what was in force stays. The flags of the following sections may be given in it as well; a flag wins.")

	o.settings.addFlags(&sets)

	fs = sets.FlagSet("Logging")
	logsapi.AddFlags(o.logging, fs)
	fs.VisitAll(func(f *pflag.Flag) {
		// Alpha flags of the library work, but nobody should come to depend on them.
		f.Hidden = f.Hidden || strings.HasPrefix(f.Usage, "[Alpha]")
	})
	return sets
}

// complete returns the configuration that flags and file make together, or all
// that is wrong with them as one error of one line.
func (o *serveOptions) complete(given *pflag.FlagSet) (*configuration, error) {
	o.given = given
	problems := o.problems()
	c, err := loadConfiguration(o.registry, o.configFile, given)
	if err != nil {
		problems = append(problems, err)
	}
	return c, oneLine(problems)
}

// problems are all that is wrong with what is given by flags only.
func (o *serveOptions) problems() []error {
	var problems []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			problems = append(problems, fmt.Errorf(format, args...))
		}
	}
	checkAddress := func(flag, address string) {
		_, _, err := net.SplitHostPort(address)
		check(err == nil, "--%s: %q is no address with a port, such as :9443", flag, address)
	}
	checkAddress("webhook-bind-address", o.webhookAddress)
	checkAddress("health-probe-bind-address", o.healthAddress)
	if o.metricsAddress != "0" {
		checkAddress("metrics-bind-address", o.metricsAddress)
	}
	problems = append(problems, o.certificates.Validate()...)
	check(o.shutdownDelay >= 0, "--shutdown-delay: %s is negative", o.shutdownDelay)
	check(o.shutdownTimeout > 0, "--shutdown-timeout: %s is not positive", o.shutdownTimeout)
	if wrong := validation.IsDNS1123Label(o.namespace); len(wrong) > 0 {
		check(false, "--namespace: %q is no namespace: %s", o.namespace, strings.Join(wrong, "; "))
	}
	return slices.Concat(problems, o.debug.problems(), o.tracing.problems())
}

// oneLine joins errors without line breaks.
func oneLine(problems []error) error {
	err := utilerrors.NewAggregate(problems)
	if err == nil {
		return nil
	}
	var texts []string
	for _, e := range err.Errors() {
		texts = append(texts, strings.ReplaceAll(e.Error(), "\n", "; "))
	}
	return errors.New(strings.Join(texts, "; "))
}
