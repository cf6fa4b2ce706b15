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

// Registration returns the plugin's entry in the registry. The plugin needs no
// permissions besides those that Prebind has itself, and watches nothing but nodes.
func Registration() framework.Registration {
	return framework.Registration{
		Name:        Name,
		On:          true,
		Description: "sees that the node is as the scheduler believed: ready, not cordoned, taints, affinity, and what annotations expect",
		Annotations: "expect, expect-conditions, wait",
		Arguments:   func() framework.Arguments { return &Arguments{Checks: CheckNames(), MaxWait: 5 * time.Minute} },
		New: func(h framework.Handle, a framework.Arguments) (framework.PreBinder, error) {
			args, err := framework.ArgumentsAs[*Arguments](a)
			if err != nil {
				return nil, err
			}
			return New(h, args)
		},
	}
}

// Arguments of the plugin.
type Arguments struct {
	// Checks are the names of the checks that are made for every bind.
	Checks []string `yaml:"checks"`
	// MaxWait is the most that the annotation wait can ask for.
	MaxWait time.Duration `yaml:"maxWait"`
}

// AddFlags implements framework.Arguments.
func (a *Arguments) AddFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&a.Checks, "node-state-checks", a.Checks,
		"What the plugin node-state checks of every bind. Empty for nothing; that the node exists, and what annotations expect of it, is checked in any case.")
	fs.DurationVar(&a.MaxWait, "node-state-max-wait", a.MaxWait,
		"The most that the annotation node-state.<domain>/wait can ask for. The wait is part of --prebind-timeout.")
}

// LongestWait returns the wait that budgets.maxPrebindTimeout limits, and its field.
func (a *Arguments) LongestWait() (field string, wait time.Duration) { return "maxWait", a.MaxWait }

// Validate implements framework.Arguments.
func (a *Arguments) Validate() []framework.Problem {
	_, err := ParseChecks(a.Checks)
	return append(framework.InvalidField("checks", err), framework.Positive("maxWait", a.MaxWait)...)
}
