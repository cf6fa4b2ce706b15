// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import "github.com/prebind/prebind/policy/v1alpha1"

// check returns the warnings.
func (c *compiler) check() []v1alpha1.ExpressionWarning { return nil }
