// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package work

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/types"

	"github.com/prebind/prebind/binder/framework"
)

// tenantMarks returns n marks of ended replicas for deleted pods of the namespace.
func tenantMarks(namespace string, n int) []framework.Mark {
	marks := make([]framework.Mark, n)
	for i := range marks {
		name := fmt.Sprintf("pod-%d", i)
		marks[i] = framework.Mark{Pod: types.NamespacedName{Namespace: namespace, Name: name}, PodUID: types.UID(namespace + name), Node: "node-a", Attempt: "gone-" + name}
	}
	return marks
}

// TestSweep_TenantWithManyMarks: one tenant has thousands of marks whose rollbacks are slow or fail.
// The single mark of another tenant is settled in the first sweep, and every mark is tried.
func TestSweep_TenantWithManyMarks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const many = 2_000
		calls := map[string]int{}
		m := &marker{recordingWriter: newWriter(&journal{}), marks: slices.Concat(tenantMarks("hostile", many), tenantMarks("victim", 1))}
		began := time.Now()
		var settled time.Duration
		m.rollBack = func(_ context.Context, bc *framework.BindContext) error {
			pass(50 * time.Millisecond)
			calls[bc.Pod.Namespace+"/"+bc.Pod.Name]++
			if bc.Pod.Namespace == "victim" {
				settled = time.Since(began)
				m.marks = m.marks[:many]
				return nil
			}
			return errScripted
		}
		sweeping(t, m, livingReplicas{}, nil, 10*time.Minute)
		assert.Equal(t, 1, calls["victim/pod-0"])
		assert.Less(t, settled, sweepEvery, "the mark is settled in the first sweep")
		assert.Len(t, calls, many+1, "every mark was tried")
		for name, n := range calls {
			assert.LessOrEqual(t, n, 6, "%s was not tried more often than the others", name)
		}
	})
}

func TestTurns(t *testing.T) {
	of := func(namespace string, tried int, since time.Time) *orphan {
		return &orphan{mark: framework.Mark{Pod: types.NamespacedName{Namespace: namespace, Name: fmt.Sprint(tried)}}, tried: tried, since: since}
	}
	early := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	later := early.Add(time.Minute)
	tests := map[string]struct {
		reason string
		in     []*orphan
		most   int
		want   []*orphan
	}{
		"None":       {reason: "no marks", most: 2, want: nil},
		"All":        {reason: "all marks have a turn", most: 3, in: []*orphan{of("a", 1, early), of("b", 1, early)}, want: []*orphan{of("a", 1, early), of("b", 1, early)}},
		"TakeTurns":  {reason: "many marks of a tenant do not delay another one", most: 2, in: []*orphan{of("a", 0, early), of("a", 0, early), of("b", 0, early)}, want: []*orphan{of("a", 0, early), of("b", 0, early)}},
		"LongestAgo": {reason: "a mark that fails does not delay others", most: 1, in: []*orphan{of("a", 2, early), of("a", 1, early), of("a", 3, early)}, want: []*orphan{of("a", 1, early)}},
		"Namespaces": {reason: "with more namespaces than turns, they rotate", most: 1, in: []*orphan{of("a", 2, early), of("b", 1, early)}, want: []*orphan{of("b", 1, early)}},
		"Oldest":     {reason: "new marks do not push old ones back", most: 1, in: []*orphan{of("a", 0, later), of("b", 0, early)}, want: []*orphan{of("b", 0, early)}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tc.want, turns(tc.in, tc.most), tc.reason)
		})
	}
}
