// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"cmp"
	"time"
)

// DefaultTimeout is the default of Wait.Timeout.
const DefaultTimeout = 2 * time.Minute

// SetDefaults sets fields that are empty to the defaults of the CustomResourceDefinition, as the API server
// does. It is for policies that do not come from the API server, such as those in files.
func SetDefaults(p *BindPolicy) {
	p.Spec.FailurePolicy = cmp.Or(p.Spec.FailurePolicy, FailurePolicyFail)
	p.Spec.Mode = cmp.Or(p.Spec.Mode, ModeEnforce)
	for i := range p.Spec.WaitFor {
		w := &p.Spec.WaitFor[i]
		w.Timeout.Duration = cmp.Or(w.Timeout.Duration, DefaultTimeout)
		w.OnTimeout = cmp.Or(w.OnTimeout, OnTimeoutRefuse)
	}
}
