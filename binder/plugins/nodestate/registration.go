// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package nodestate

import (
	"slices"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/config/v1alpha1"
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
		Arguments: func() framework.Arguments {
			return &Arguments{Checks: CheckNames(), MaxWait: metav1.Duration{Duration: 5 * time.Minute}}
		},
		New: framework.Build(func(_ framework.Handle, a *Arguments) (framework.Plugin, error) {
			return &Plugin{checks: sets.New(a.Checks...), maxWait: a.MaxWait.Duration}, nil
		}),
	}
}

// Arguments of the plugin.
type Arguments struct {
	// Checks are the names of the checks for every bind.
	Checks []string `json:"checks"`
	// MaxWait limits the annotation wait.
	MaxWait metav1.Duration `json:"maxWait"`
}

// AddFlags implements framework.Arguments.
func (a *Arguments) AddFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&a.Checks, "node-state-checks", a.Checks,
		"Checks that the plugin node-state makes for every bind, in addition to expectations in annotations.")
	fs.DurationVar(&a.MaxWait.Duration, "node-state-max-wait", a.MaxWait.Duration,
		"Maximum value of the annotation node-state.prebind.dev/wait.")
}

// LongestWait returns the wait that budgets.maxPrebindTimeout limits, and the wait's field.
func (a *Arguments) LongestWait() (name string, wait metav1.Duration) { return "maxWait", a.MaxWait }

// Validate implements framework.Arguments.
func (a *Arguments) Validate(path *field.Path) field.ErrorList {
	all := v1alpha1.Positive(path.Child("maxWait"), a.MaxWait)
	for i, name := range a.Checks {
		if !slices.Contains(CheckNames(), name) {
			all = append(all, field.NotSupported(path.Child("checks").Index(i), name, CheckNames()))
		}
	}
	return all
}
