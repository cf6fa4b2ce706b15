// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build faults_broken

package faults

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// rollBackFile has rollsBack, the one line by which the engine rolls a plugin back.
const (
	rollBackFile = "binder/rollback.go"
	rollsBack    = "return p.PreBindRollBack(ctx, bc)"
)

// TestBrokenRollBack runs a Prebind that reports a roll-back as done and does none. The
// checker has to find what is left. It runs with make faults-broken only, because three
// minutes must pass before a roll-back is known to be missing.
func TestBrokenRollBack(t *testing.T) {
	source, err := os.ReadFile(filepath.Join("..", "..", rollBackFile))
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(string(source), rollsBack), "%s should have %q once: change the constants of this test with it", rollBackFile, rollsBack)
	broken := strings.Replace(string(source), rollsBack, "return nil", 1)
	w := newWorld(t, build(t, map[string][]byte{rollBackFile: []byte(broken)}))
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
