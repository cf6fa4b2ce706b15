// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation"
	cliflag "k8s.io/component-base/cli/flag"
	logsapi "k8s.io/component-base/logs/api/v1"

	"github.com/prebind/prebind/binder/plugins/nodestate"
	"github.com/prebind/prebind/mutators/nodeinfo"
	"github.com/prebind/prebind/mutators/topology"
)

const defaultDomain = "prebind.dev"

// serveOptions are the flags of prebind serve.
type serveOptions struct {
	// mutatorList and pluginList are all that is compiled in.
	mutatorList []Mutator
	pluginList  []Plugin

	kubeconfig             string
	webhookAddress         string
	certDir                string
	metricsAddress         string
	healthAddress          string
	mutators               []string
	plugins                []string
	domain                 string
	namespace              string
	leaderElect            bool
	requiredMutators       []string
	topology               topology.Options
	nodeInfo               nodeinfo.Options
	nodeStateChecks        []string
	nodeStateMaxWait       time.Duration
	deviceNodeLocks        bool
	deviceNodeLockTimeout  time.Duration
	resourceClaimsTimeout  time.Duration
	resourceClaimsAllocate []string
	hold                   time.Duration
	maxHolds               int
	preBindTimeout         time.Duration
	preBindMax             time.Duration
	shutdownDelay          time.Duration
	shutdownTimeout        time.Duration
	logging                *logsapi.LoggingConfiguration
}

func defaultServeOptions() *serveOptions {
	o := &serveOptions{
		webhookAddress:        ":9443",
		certDir:               "/etc/prebind/tls",
		metricsAddress:        ":8080",
		healthAddress:         ":8081",
		mutators:              []string{"*"},
		plugins:               []string{"*"},
		domain:                defaultDomain,
		namespace:             "prebind-system",
		leaderElect:           true,
		topology:              topology.Options{Labels: topology.DefaultLabels()},
		nodeStateChecks:       nodestate.CheckNames(),
		nodeStateMaxWait:      5 * time.Minute,
		deviceNodeLockTimeout: 15 * time.Minute,
		resourceClaimsTimeout: 10 * time.Minute,
		hold:                  5 * time.Second,
		maxHolds:              32,
		preBindTimeout:        10 * time.Minute,
		preBindMax:            30 * time.Minute,
		shutdownDelay:         5 * time.Second,
		shutdownTimeout:       15 * time.Second,
		logging:               logsapi.NewLoggingConfiguration(),
	}
	o.mutatorList, o.pluginList = registeredMutators(o), registeredPlugins(o)
	return o
}

// flags returns the flags by section, bound to the options.
func (o *serveOptions) flags() cliflag.NamedFlagSets {
	var sets cliflag.NamedFlagSets

	fs := sets.FlagSet("Serving")
	fs.StringVar(&o.kubeconfig, "kubeconfig", o.kubeconfig, "File with the way to the API server. Without it, Prebind must run in a pod.")
	fs.StringVar(&o.webhookAddress, "webhook-bind-address", o.webhookAddress, "Address and port of the webhook (HTTPS).")
	fs.StringVar(&o.certDir, "cert-dir", o.certDir, "Folder with the webhook's certificate, tls.crt, and its key, tls.key. They are read again when they change.")
	fs.StringVar(&o.metricsAddress, "metrics-bind-address", o.metricsAddress, "Address and port of /metrics (HTTP). 0 switches it off.")
	fs.StringVar(&o.healthAddress, "health-probe-bind-address", o.healthAddress, "Address and port of /healthz and /readyz (HTTP).")
	fs.DurationVar(&o.shutdownDelay, "shutdown-delay", o.shutdownDelay, "How long after SIGTERM new calls are still answered, with HTTP 503, so that the API server turns to another replica. It should be longer than the cluster takes to take a pod out of a Service.")
	fs.DurationVar(&o.shutdownTimeout, "shutdown-timeout", o.shutdownTimeout, "How long the calls under way may take to end then.")

	fs = sets.FlagSet("Replicas")
	fs.StringVar(&o.namespace, "namespace", o.namespace, "Namespace of Prebind's own objects: the leases by which replicas know of each other.")
	fs.BoolVar(&o.leaderElect, "leader-elect", o.leaderElect, "Let one replica at a time bring to an end what replicas that are gone left behind. Without it, every replica does so.")

	fs = sets.FlagSet("Mutators and plugins")
	fs.StringSliceVar(&o.mutators, "mutators", o.mutators,
		"Mutators to run. '*' stands for all that are on by default, 'foo' switches foo on, '-foo' off. The order is that of 'prebind plugins'.")
	fs.StringSliceVar(&o.plugins, "prebind-plugins", o.plugins, "PreBind plugins to run, in the same form.")
	fs.StringSliceVar(&o.requiredMutators, "required-mutators", o.requiredMutators,
		"Mutators without whose annotations no pod is bound. When one of them fails, or the node lacks what it is to tell of, the bind is refused; any other is left out.")
	fs.StringVar(&o.domain, "annotation-domain", o.domain, "Domain of all annotations: they are <plugin>.<domain>/<key>.")

	fs = sets.FlagSet("Mutators")
	fs.StringSliceVar(&o.topology.Labels, "topology-labels", o.topology.Labels,
		"Node labels that the mutator topology copies, each as 'label', 'label=key', or by prefix as 'example.com/net-*' or 'example.com/net-*=n-*', where the star in the key stands for the rest; '*' is every label. The key is by default the part behind the slash. Entries without a star win.")
	fs.StringSliceVar(&o.topology.Path, "topology-path", o.topology.Path,
		"Node labels, from the widest place to the narrowest, whose values joined by '/' become the annotation topology.<domain>/path. A node that lacks one of them gives no path.")
	fs.StringSliceVar(&o.topology.PodLabels, "topology-pod-labels", o.topology.PodLabels,
		"Keys of --topology-labels, as they stand behind topology.<domain>/, that become labels of the pod as well; '*' for all of them. It takes Kubernetes 1.35 or later.")
	fs.BoolVar(&o.topology.ReplacePodLabels, "topology-replace-pod-labels", o.topology.ReplacePodLabels,
		"Let these labels replace the value that a pod or a Binding has. Otherwise that value is kept, and a warning says so.")
	fs.StringSliceVar(&o.nodeInfo.Annotations, "node-info-annotations", o.nodeInfo.Annotations,
		"Node annotations that the mutator node-info copies besides its facts, each as 'annotation' or 'annotation=key'.")

	fs = sets.FlagSet("PreBind plugins")
	fs.StringSliceVar(&o.nodeStateChecks, "node-state-checks", o.nodeStateChecks,
		"What the plugin node-state checks of every bind. Empty for nothing; that the node exists, and what annotations expect of it, is checked in any case.")
	fs.DurationVar(&o.nodeStateMaxWait, "node-state-max-wait", o.nodeStateMaxWait, "The most that the annotation node-state.<domain>/wait can ask for. The wait is part of --prebind-timeout.")
	fs.BoolVar(&o.deviceNodeLocks, "device-node-locks", o.deviceNodeLocks,
		"Let every pod that names devices for the plugin device be the only one to be bound to its node at a time, as device managers need that look for the pod that is being bound. The annotation device.<domain>/node-lock asks for the same.")
	fs.DurationVar(&o.deviceNodeLockTimeout, "device-node-lock-timeout", o.deviceNodeLockTimeout, "When the lock of a node may be taken from a bind that still holds it. It should be longer than any bind takes.")

	fs.DurationVar(&o.resourceClaimsTimeout, "resource-claims-binding-timeout", o.resourceClaimsTimeout,
		"How long after its allocation a ResourceClaim's binding conditions may take to become true, as the bindingTimeout of kube-scheduler's DynamicResourcesArgs.")
	fs.StringSliceVar(&o.resourceClaimsAllocate, "resource-claims-allocate", o.resourceClaimsAllocate,
		"DeviceClasses whose claims the plugin resource-claims allocates, for schedulers that know nothing of ResourceClaims. No scheduler may allocate them as well.")

	fs = sets.FlagSet("Waiting")
	fs.DurationVar(&o.hold, "hold", o.hold, "How long a call is kept waiting at most; then the client is told to call again. It ends before the API server's own timeout in any case.")
	fs.IntVar(&o.maxHolds, "max-holds", o.maxHolds, "How many calls are kept waiting at a time. Each holds a concurrency seat of the API server; a call over that is told at once to call again.")
	fs.DurationVar(&o.preBindTimeout, "prebind-timeout", o.preBindTimeout, "How long the PreBind of one pod on one node may take, over all its calls. The annotation binder.<domain>/timeout of the Binding or the pod sets another.")
	fs.DurationVar(&o.preBindMax, "max-prebind-timeout", o.preBindMax, "The most that the annotation binder.<domain>/timeout can ask for.")

	fs = sets.FlagSet("Logging")
	logsapi.AddFlags(o.logging, fs)
	fs.VisitAll(func(f *pflag.Flag) {
		// Alpha flags of the library work, but nobody should come to depend on them.
		f.Hidden = f.Hidden || strings.HasPrefix(f.Usage, "[Alpha]")
	})
	return sets
}

// validate returns all that is wrong with the flags, as one error.
func (o *serveOptions) validate() error {
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
	check(o.certDir != "", "--cert-dir: a folder with tls.crt and tls.key is needed")
	check(o.hold > 0, "--hold: %s is not positive", o.hold)
	check(o.maxHolds > 0, "--max-holds: %d is not positive", o.maxHolds)
	check(o.preBindTimeout > 0, "--prebind-timeout: %s is not positive", o.preBindTimeout)
	check(o.preBindMax >= o.preBindTimeout, "--max-prebind-timeout: %s is less than --prebind-timeout, %s", o.preBindMax, o.preBindTimeout)
	check(o.shutdownDelay >= 0, "--shutdown-delay: %s is negative", o.shutdownDelay)
	check(o.shutdownTimeout > 0, "--shutdown-timeout: %s is not positive", o.shutdownTimeout)
	if wrong := validation.IsDNS1123Label(o.namespace); len(wrong) > 0 {
		check(false, "--namespace: %q is no namespace: %s", o.namespace, strings.Join(wrong, "; "))
	}
	if wrong := validation.IsDNS1123Subdomain(o.domain); len(wrong) > 0 {
		check(false, "--annotation-domain: %q is no domain: %s", o.domain, strings.Join(wrong, "; "))
	}
	if _, err := o.selectedMutators(); err != nil {
		check(false, "--mutators: %w", err)
	}
	if _, err := o.selectedPlugins(); err != nil {
		check(false, "--prebind-plugins: %w", err)
	}
	if on, err := o.selectedMutators(); err == nil {
		for _, name := range o.requiredMutators {
			isOn := slices.ContainsFunc(on, func(m Mutator) bool { return m.Name == name })
			check(isOn, "--required-mutators: %q is no mutator that is switched on", name)
		}
	}
	if _, err := topology.New(o.topology); err != nil {
		check(false, "--topology-labels, --topology-path, --topology-pod-labels: %w", err)
	}
	if _, err := nodeinfo.New(o.nodeInfo); err != nil {
		check(false, "--node-info-annotations: %w", err)
	}
	if _, err := nodestate.ParseChecks(o.nodeStateChecks); err != nil {
		check(false, "--node-state-checks: %w", err)
	}
	check(o.nodeStateMaxWait > 0, "--node-state-max-wait: %s is not positive", o.nodeStateMaxWait)
	check(o.nodeStateMaxWait <= o.preBindMax, "--node-state-max-wait: %s is more than --max-prebind-timeout, %s", o.nodeStateMaxWait, o.preBindMax)
	check(o.resourceClaimsTimeout > 0, "--resource-claims-binding-timeout: %s is not positive", o.resourceClaimsTimeout)
	for _, class := range o.resourceClaimsAllocate {
		wrong := validation.IsDNS1123Subdomain(class)
		check(len(wrong) == 0, "--resource-claims-allocate: %q is no DeviceClass: %s", class, strings.Join(wrong, "; "))
	}
	check(o.deviceNodeLockTimeout > 0, "--device-node-lock-timeout: %s is not positive", o.deviceNodeLockTimeout)
	return oneLine(problems)
}

func (o *serveOptions) selectedMutators() ([]Mutator, error) {
	return selected(o.mutatorList, "mutator", o.mutators)
}

func (o *serveOptions) selectedPlugins() ([]Plugin, error) {
	return selected(o.pluginList, "PreBind plugin", o.plugins)
}

func (o *serveOptions) certFile() string { return filepath.Join(o.certDir, "tls.crt") }
func (o *serveOptions) keyFile() string  { return filepath.Join(o.certDir, "tls.key") }

// oneLine joins errors without line breaks.
func oneLine(problems []error) error {
	err := utilerrors.NewAggregate(problems)
	if err == nil {
		return nil
	}
	var texts []string
	for _, e := range err.Errors() {
		texts = append(texts, strings.ReplaceAll(e.Error(), "\n", " "))
	}
	return errors.New(strings.Join(texts, "; "))
}
