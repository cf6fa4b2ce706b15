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

// rollBackFile contains rollsBack, the only call with which the engine rolls back a plugin.
const (
	rollBackFile = "binder/work/plugins.go"
	rollsBack    = "return p.PreBindRollBack(ctx, bc)"
)

// TestBrokenRollBack runs a Prebind that reports a rollback as complete without doing it. The checker must report the
// remaining grants and marks. The test runs only with make faults-broken, because a missing rollback is certain only after
// three minutes.
func TestBrokenRollBack(t *testing.T) {
	source, err := os.ReadFile(filepath.Join("..", "..", rollBackFile))
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(string(source), rollsBack), "%s should contain %q once: update the constants of this test", rollBackFile, rollsBack)
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
		assert.True(t, slices.ContainsFunc(left, func(problem string) bool { return strings.Contains(problem, kind) }), "the checker should report a problem with %q", kind)
	}
	t.Logf("the checker reports %d problems, as expected:\n%s", len(left), strings.Join(left, "\n"))
}
