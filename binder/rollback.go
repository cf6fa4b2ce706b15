// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"

	"github.com/prebind/prebind/binder/framework"
)

// preBindRollBack lets the plugin undo its writes. Every roll-back passes through this
// line, which test/faults replaces in one test.
func preBindRollBack(ctx context.Context, p framework.RollBacker, bc *framework.BindContext) error {
	return p.PreBindRollBack(ctx, bc)
}
