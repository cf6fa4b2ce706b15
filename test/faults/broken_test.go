// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build prebind_broken_rollback

package faults

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestBrokenRollBack has a Prebind at work that forgets to roll back: the checker
// has to see it. make faults-broken starts it: it takes three minutes to be sure of a lack.
func TestBrokenRollBack(t *testing.T) {
	w := newWorld(t, build(t, "prebind_broken_rollback"))
	l := newLoad(w, *seed)
	l.begin(t.Context())
	ctx, cancel := context.WithTimeout(t.Context(), *length)
	defer cancel()
	<-ctx.Done()
	l.end()
	require.NoError(t, w.setOpen(t.Context(), "yes"))
	left := w.untilClean(t, l, 3*time.Minute)
	for _, kind := range []string{"the record ", "is marked"} {
		assert.True(t, slices.ContainsFunc(left, func(problem string) bool { return strings.Contains(problem, kind) }), "the checker should see what %q is left", kind)
	}
	t.Logf("the checker is red, as it should be: %d things are left:\n%s", len(left), strings.Join(left, "\n"))
}
