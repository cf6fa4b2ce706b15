// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/prebind/prebind/binder/plugins/nodestate"
	"github.com/prebind/prebind/mutators/nodeinfo"
	"github.com/prebind/prebind/mutators/topology"
)

// Arguments are those of one mutator or plugin. The type is a pointer to a struct
// whose fields have yaml tags in camelCase: they are given in the configuration
// file below arguments.<name>, or by flags.
type Arguments interface {
	// AddFlags adds the flags, each bound to its field: <name>-<field in kebab-case>.
	AddFlags(fs *pflag.FlagSet)
	// Validate returns all that is wrong with the arguments. It is called before the
	// mutator or plugin is built, and when it is off, too.
	Validate() []Problem
}

// Problem is what is wrong with one field.
type Problem struct {
	// Field is the yaml name.
	Field string
	Err   error
}

// argumentsAs returns the arguments in their own type. The registry gives each
// entry the arguments that the entry itself made, so that an error is a mistake in
// the program.
func argumentsAs[T Arguments](a Arguments) (T, error) {
	typed, ok := a.(T)
	if !ok {
		return typed, fmt.Errorf("the arguments are a %T, not a %T", a, typed)
	}
	return typed, nil
}

// positive is the problem of a duration that is not.
func positive(field string, d time.Duration) []Problem {
	if d > 0 {
		return nil
	}
	return []Problem{{Field: field, Err: fmt.Errorf("%s is not positive", d)}}
}

func problem(field string, err error) []Problem {
	if err == nil {
		return nil
	}
	return []Problem{{Field: field, Err: err}}
}

// topologyArguments are those of the mutator topology.
type topologyArguments struct {
	Labels           []string `yaml:"labels"`
	Path             []string `yaml:"path"`
	PodLabels        []string `yaml:"podLabels"`
	ReplacePodLabels bool     `yaml:"replacePodLabels"`
}

func defaultTopologyArguments() Arguments {
	return &topologyArguments{Labels: topology.DefaultLabels()}
}

// AddFlags implements Arguments.
func (a *topologyArguments) AddFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&a.Labels, "topology-labels", a.Labels,
		"Node labels that the mutator topology copies, each as 'label', 'label=key', or by prefix as 'example.com/net-*' or 'example.com/net-*=n-*', where the star in the key stands for the rest; '*' is every label. The key is by default the part behind the slash. Entries without a star win.")
	fs.StringSliceVar(&a.Path, "topology-path", a.Path,
		"Node labels, from the widest place to the narrowest, whose values joined by '/' become the annotation topology.<domain>/path. A node that lacks one of them gives no path.")
	fs.StringSliceVar(&a.PodLabels, "topology-pod-labels", a.PodLabels,
		"Keys of --topology-labels, as they stand behind topology.<domain>/, that become labels of the pod as well; '*' for all of them. It takes Kubernetes 1.35 or later.")
	fs.BoolVar(&a.ReplacePodLabels, "topology-replace-pod-labels", a.ReplacePodLabels,
		"Let these labels replace the value that a pod or a Binding has. Otherwise that value is kept, and a warning says so.")
}

func (a *topologyArguments) options() topology.Options {
	return topology.Options{Labels: a.Labels, Path: a.Path, PodLabels: a.PodLabels, ReplacePodLabels: a.ReplacePodLabels}
}

// Validate implements Arguments.
func (a *topologyArguments) Validate() []Problem {
	_, err := topology.New(topology.Options{Labels: a.Labels})
	if err != nil {
		return problem("labels", err)
	}
	if _, err := topology.New(topology.Options{Labels: a.Labels, Path: a.Path}); err != nil {
		return problem("path", err)
	}
	_, err = topology.New(a.options())
	return problem("podLabels", err)
}

// nodeInfoArguments are those of the mutator node-info.
type nodeInfoArguments struct {
	Annotations []string `yaml:"annotations"`
}

// AddFlags implements Arguments.
func (a *nodeInfoArguments) AddFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&a.Annotations, "node-info-annotations", a.Annotations,
		"Node annotations that the mutator node-info copies besides its facts, each as 'annotation' or 'annotation=key'.")
}

// Validate implements Arguments.
func (a *nodeInfoArguments) Validate() []Problem {
	_, err := nodeinfo.New(nodeinfo.Options{Annotations: a.Annotations})
	return problem("annotations", err)
}

// nodeStateArguments are those of the plugin node-state.
type nodeStateArguments struct {
	Checks  []string      `yaml:"checks"`
	MaxWait time.Duration `yaml:"maxWait"`
}

func defaultNodeStateArguments() Arguments {
	return &nodeStateArguments{Checks: nodestate.CheckNames(), MaxWait: 5 * time.Minute}
}

// AddFlags implements Arguments.
func (a *nodeStateArguments) AddFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&a.Checks, "node-state-checks", a.Checks,
		"What the plugin node-state checks of every bind. Empty for nothing; that the node exists, and what annotations expect of it, is checked in any case.")
	fs.DurationVar(&a.MaxWait, "node-state-max-wait", a.MaxWait,
		"The most that the annotation node-state.<domain>/wait can ask for. The wait is part of --prebind-timeout.")
}

// Validate implements Arguments.
func (a *nodeStateArguments) Validate() []Problem {
	_, err := nodestate.ParseChecks(a.Checks)
	return append(problem("checks", err), positive("maxWait", a.MaxWait)...)
}

// deviceArguments are those of the plugin device.
type deviceArguments struct {
	NodeLocks       bool          `yaml:"nodeLocks"`
	NodeLockTimeout time.Duration `yaml:"nodeLockTimeout"`
}

func defaultDeviceArguments() Arguments { return &deviceArguments{NodeLockTimeout: 15 * time.Minute} }

// AddFlags implements Arguments.
func (a *deviceArguments) AddFlags(fs *pflag.FlagSet) {
	fs.BoolVar(&a.NodeLocks, "device-node-locks", a.NodeLocks,
		"Let every pod that names devices for the plugin device be the only one to be bound to its node at a time, as device managers need that look for the pod that is being bound. The annotation device.<domain>/node-lock asks for the same.")
	fs.DurationVar(&a.NodeLockTimeout, "device-node-lock-timeout", a.NodeLockTimeout,
		"When the lock of a node may be taken from a bind that still holds it. It should be longer than any bind takes.")
}

// Validate implements Arguments.
func (a *deviceArguments) Validate() []Problem {
	return positive("nodeLockTimeout", a.NodeLockTimeout)
}

// resourceClaimsArguments are those of the plugin resource-claims.
type resourceClaimsArguments struct {
	BindingTimeout time.Duration `yaml:"bindingTimeout"`
	Allocate       []string      `yaml:"allocate"`
}

func defaultResourceClaimsArguments() Arguments {
	return &resourceClaimsArguments{BindingTimeout: 10 * time.Minute}
}

// AddFlags implements Arguments.
func (a *resourceClaimsArguments) AddFlags(fs *pflag.FlagSet) {
	fs.DurationVar(&a.BindingTimeout, "resource-claims-binding-timeout", a.BindingTimeout,
		"How long after its allocation a ResourceClaim's binding conditions may take to become true, as the bindingTimeout of kube-scheduler's DynamicResourcesArgs.")
	fs.StringSliceVar(&a.Allocate, "resource-claims-allocate", a.Allocate,
		"DeviceClasses whose claims the plugin resource-claims allocates, for schedulers that know nothing of ResourceClaims. No scheduler may allocate them as well.")
}

// Validate implements Arguments.
func (a *resourceClaimsArguments) Validate() []Problem {
	problems := positive("bindingTimeout", a.BindingTimeout)
	for i, class := range a.Allocate {
		if wrong := validation.IsDNS1123Subdomain(class); len(wrong) > 0 {
			problems = append(problems, Problem{
				Field: fmt.Sprintf("allocate[%d]", i),
				Err:   fmt.Errorf("%q is no DeviceClass: %s", class, strings.Join(wrong, "; ")),
			})
		}
	}
	return problems
}
