// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"
	cliflag "k8s.io/component-base/cli/flag"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // For --logging-format=json.
	"k8s.io/component-base/term"

	"github.com/prebind/prebind/cmd/internal/cli"
	"github.com/prebind/prebind/internal/certificates"
	"github.com/prebind/prebind/internal/configuration"
	"github.com/prebind/prebind/internal/telemetry"
	"github.com/prebind/prebind/webhook"
)

// serveOptions are the flags of prebind serve.
type serveOptions struct {
	registry        *configuration.Registry
	kubeconfig      string
	webhookAddress  string
	certificates    certificates.Options
	metricsAddress  string
	healthAddress   string
	debugAddress    string
	namespace       string
	podName         string
	leaderElect     bool
	configFile      string
	shutdownDelay   time.Duration
	shutdownTimeout time.Duration
	tracing         telemetry.TracesOptions
	logging         *logsapi.LoggingConfiguration
}

func newServeCommand(r *configuration.Registry) *cobra.Command {
	o := newServeOptions(r)
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the webhook",
		Long: `Run the webhook until SIGTERM or SIGINT.

It answers AdmissionReviews at ` + webhook.Path + `. While its caches are not synced and
while it shuts down, it answers HTTP 503 with Retry-After, and the API server calls
another replica.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			configuration, err := o.complete(cmd.Flags())
			if err != nil {
				return err
			}
			if err := logsapi.ValidateAndApply(o.logging, nil); err != nil {
				return fmt.Errorf("logging flags: %w", err)
			}
			defer runtime.KeepAlive(tuneMemory())
			return serve(cmd.Context(), o, configuration)
		},
	}
	sets := o.flags()
	for _, name := range sets.Order {
		cmd.Flags().AddFlagSet(sets.FlagSets[name])
	}
	width, _, _ := term.TerminalSize(cmd.OutOrStdout())
	cliflag.SetUsageAndHelpFunc(cmd, sets, width)
	return cmd
}

func newServeOptions(r *configuration.Registry) *serveOptions {
	return &serveOptions{registry: r, logging: logsapi.NewLoggingConfiguration()}
}

// flags returns the flags by section, and sets the options to their defaults.
func (o *serveOptions) flags() cliflag.NamedFlagSets {
	var sets cliflag.NamedFlagSets

	fs := sets.FlagSet("Serving")
	fs.StringVar(&o.kubeconfig, "kubeconfig", "", "Path to a kubeconfig file. If empty, Prebind uses the service account of its pod.")
	fs.StringVar(&o.webhookAddress, "webhook-bind-address", ":9443", "Address and port of the webhook (HTTPS).")
	fs.StringVar(&o.metricsAddress, "metrics-bind-address", ":8080", "Address and port of /metrics (HTTP). 0 disables it.")
	fs.StringVar(&o.healthAddress, "health-probe-bind-address", ":8081", "Address and port of /healthz and /readyz (HTTP).")
	fs.DurationVar(&o.shutdownDelay, "shutdown-delay", 5*time.Second, "Time after SIGTERM during which new calls get HTTP 503. It should be longer than the cluster needs to remove a pod from a Service.")
	fs.DurationVar(&o.shutdownTimeout, "shutdown-timeout", 15*time.Second, "Grace period for in-flight requests, after --shutdown-delay.")

	fs = sets.FlagSet("Observability")
	fs.StringVar(&o.debugAddress, "debug-bind-address", "",
		"Loopback address and port, such as 127.0.0.1:6060, of /debug/attempts, /debug/config, /debug/pprof and /debug/flags/v (HTTP). Empty disables them.")
	o.tracing.AddFlags(fs)
	o.certificates.AddFlags(sets.FlagSet("Certificates"))

	fs = sets.FlagSet("Replicas")
	fs.StringVar(&o.namespace, "namespace", "prebind-system", "Namespace of Prebind's own objects, such as the leases of its replicas.")
	fs.StringVar(&o.podName, "pod-name", "", "Name of this replica's pod in --namespace. 'kubectl prebind status' shows it.")
	fs.BoolVar(&o.leaderElect, "leader-elect", true, "Elect one replica that completes or rolls back the attempts of replicas that are gone. If false, every replica does.")

	fs = sets.FlagSet("Configuration")
	fs.StringVar(&o.configFile, "config", "", "Path to a PrebindConfiguration file; 'prebind config defaults' prints one. It has a field for each flag of the following sections; flags override it. A change needs a restart.")

	configuration.Default(o.registry).AddFlags(&sets)

	fs = sets.FlagSet("Logging")
	logsapi.AddFlags(o.logging, fs)
	fs.VisitAll(func(f *pflag.Flag) {
		// Hide alpha flags of the library, because a later version can remove them.
		f.Hidden = f.Hidden || strings.HasPrefix(f.Usage, "[Alpha]")
	})
	return sets
}

// complete returns the configuration from flags and file. Its error contains all problems in
// one line.
func (o *serveOptions) complete(given *pflag.FlagSet) (*configuration.PrebindConfiguration, error) {
	problems := o.validate()
	c, err := configuration.Load(o.registry, o.configFile, given)
	if err != nil {
		problems = append(problems, err)
	}
	return c, cli.Usage(problems...)
}

// validate returns the problems of flags that are not in the file.
func (o *serveOptions) validate() []error {
	var problems []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			problems = append(problems, fmt.Errorf(format, args...))
		}
	}
	checkAddress := func(flag, address string) string {
		host, _, err := net.SplitHostPort(address)
		check(err == nil, "--%s: must be an address with a port, such as 127.0.0.1:9443, got %q", flag, address)
		return host
	}
	checkAddress("webhook-bind-address", o.webhookAddress)
	checkAddress("health-probe-bind-address", o.healthAddress)
	if o.metricsAddress != "0" {
		checkAddress("metrics-bind-address", o.metricsAddress)
	}
	if o.debugAddress != "" {
		// The endpoints do not authenticate clients.
		if host := checkAddress("debug-bind-address", o.debugAddress); len(problems) == 0 {
			ip, err := netip.ParseAddr(host)
			check(host == "localhost" || err == nil && ip.IsLoopback(),
				"--debug-bind-address: must be a loopback address such as 127.0.0.1:6060, got %q; reach it with 'kubectl port-forward'", o.debugAddress)
		}
	}
	check(o.shutdownDelay >= 0, "--shutdown-delay: must not be negative, got %s", o.shutdownDelay)
	check(o.shutdownTimeout > 0, "--shutdown-timeout: must be positive, got %s", o.shutdownTimeout)
	invalid := validation.IsDNS1123Label(o.namespace)
	check(len(invalid) == 0, "--namespace: must be a valid namespace, got %q: %s", o.namespace, strings.Join(invalid, "; "))
	return slices.Concat(problems, o.certificates.Validate(), o.tracing.Validate())
}

const (
	// gcPercent is the default of GOGC.
	gcPercent = 200
	// ballastSize is the size of memory that the garbage collector counts as live. It is never written, so it is not resident. The
	// live heap of most clusters is so small that garbage collection would otherwise take a tenth of the processor time of binds.
	ballastSize = 16 << 20
)

// tuneMemory sets up the garbage collector, unless the environment does, and returns what has to be kept alive for it. It leaves a tenth
// of the memory limit for memory that the Go runtime does not count, such as the binary. The shipped manifests set GOMEMLIMIT to the
// limit of the container. Near the limit the garbage collector runs more often.
func tuneMemory() []byte {
	debug.SetMemoryLimit(debug.SetMemoryLimit(-1) / 10 * 9)
	if os.Getenv("GOGC") != "" {
		return nil
	}
	debug.SetGCPercent(gcPercent)
	return make([]byte, ballastSize)
}
