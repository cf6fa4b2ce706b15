// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package nodestate

import (
	"time"

	"github.com/spf13/pflag"

	"github.com/prebind/prebind/binder/framework"
)

// Name of the plugin.
const Name = "node-state"

// Registration returns the plugin's entry in the registry. The plugin needs no permissions of
// its own, because Prebind itself watches nodes.
func Registration() framework.Registration {
	return framework.Registration{
		Name:            Name,
		On:              true,
		Description:     "checks the node: ready, schedulable, taints, affinity, and the expectations in annotations",
		AnnotationsHelp: "expect, expect-conditions, wait",
		Arguments:       func() framework.Arguments { return &Arguments{Checks: CheckNames(), MaxWait: 5 * time.Minute} },
		New:             framework.Build(func(h framework.Handle, a *Arguments) (framework.Plugin, error) { return New(h, a) }),
	}
}

// Arguments of the plugin.
type Arguments struct {
	// Checks are the names of the checks for every bind.
	Checks []string `yaml:"checks"`
	// MaxWait limits the annotation wait.
	MaxWait time.Duration `yaml:"maxWait"`
}

// AddFlags implements framework.Arguments.
func (a *Arguments) AddFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&a.Checks, "node-state-checks", a.Checks,
		"Checks that the plugin node-state makes for every bind, in addition to expectations in annotations.")
	fs.DurationVar(&a.MaxWait, "node-state-max-wait", a.MaxWait,
		"Maximum value of the annotation node-state.prebind.dev/wait.")
}

// LongestWait returns the wait that budgets.maxPrebindTimeout limits, and the wait's field.
func (a *Arguments) LongestWait() (field string, wait time.Duration) { return "maxWait", a.MaxWait }

// Validate implements framework.Arguments.
func (a *Arguments) Validate() []framework.Problem {
	_, err := ParseChecks(a.Checks)
	return append(framework.FieldProblem("checks", err), framework.Positive("maxWait", a.MaxWait)...)
}
