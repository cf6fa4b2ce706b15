// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !prebind_broken_rollback

package binder

import (
	"context"

	"github.com/prebind/prebind/binder/framework"
)

// preBindRollBack has the plugin undo what it did.
func preBindRollBack(ctx context.Context, p framework.RollBacker, bc *framework.BindContext) error {
	return p.PreBindRollBack(ctx, bc)
}
