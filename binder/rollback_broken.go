// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build prebind_broken_rollback

package binder

import (
	"context"

	"github.com/prebind/prebind/binder/framework"
)

// preBindRollBack forgets to roll back, and says that all is well: the checker of
// test/faults has to see that. No release is built with this tag.
func preBindRollBack(context.Context, framework.RollBacker, *framework.BindContext) error { return nil }
