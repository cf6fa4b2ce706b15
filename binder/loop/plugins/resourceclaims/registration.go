// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package resourceclaims

import (
	"time"

	"github.com/spf13/pflag"

	oldframework "github.com/prebind/prebind/binder/framework"
)

// Arguments of the plugin.
type Arguments struct {
	// BindingTimeout is the maximum time from the allocation of a claim until its binding
	// conditions are true, like bindingTimeout in kube-scheduler's DynamicResourcesArgs.
	BindingTimeout time.Duration `yaml:"bindingTimeout"`
}

// AddFlags implements oldframework.Arguments.
func (a *Arguments) AddFlags(fs *pflag.FlagSet) {
	fs.DurationVar(&a.BindingTimeout, "resource-claims-binding-timeout", a.BindingTimeout,
		"Maximum time from the allocation of a ResourceClaim until its binding conditions are true, like bindingTimeout in kube-scheduler's DynamicResourcesArgs.")
}

// Validate implements oldframework.Arguments.
func (a *Arguments) Validate() []oldframework.Problem {
	return oldframework.Positive("bindingTimeout", a.BindingTimeout)
}
