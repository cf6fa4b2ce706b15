// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package recovery

import (
	"cmp"
	"slices"
	"time"

	"github.com/prebind/prebind/binder/fair"
	"github.com/prebind/prebind/binder/loop/framework"
)

// orphan is the record of a mark whose attempt is no longer in progress.
type orphan struct {
	// since is when the sweeper first found that out, by its own clock.
	since time.Time
	// tried is the number of the last sweep that tried to settle it, or zero.
	tried int
}

// orphaned is a mark whose attempt is no longer in progress.
type orphaned struct {
	plugin framework.PreBinder
	mark   framework.Mark
	orphan *orphan
}

// turns returns the marks that the next sweep settles, in order, up to the given number.
// Namespaces take turns. In each, the mark whose last try is the oldest is first. Thus a tenant
// with many marks, or a mark that fails, does not delay others.
func turns(marks []orphaned, most int) []orphaned {
	marks = slices.Clone(marks)
	slices.SortStableFunc(marks, func(a, b orphaned) int {
		return cmp.Or(cmp.Compare(a.orphan.tried, b.orphan.tried), a.orphan.since.Compare(b.orphan.since))
	})
	marks = fair.Interleave(marks, func(o orphaned) string { return o.mark.Pod.Namespace })
	return marks[:min(len(marks), most)]
}
