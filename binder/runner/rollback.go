// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"context"

	"github.com/prebind/prebind/binder/framework"
)

// preBindRollBack calls PreBindRollBack of the plugin. One test of test/faults replaces this file.
func preBindRollBack(ctx context.Context, p framework.RollBacker, bc *framework.BindContext) error {
	return p.PreBindRollBack(ctx, bc)
}
