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
		m.rollBack = func(_ context.Context, of framework.Mark) error {
			pass(50 * time.Millisecond)
			calls[of.Pod.Namespace+"/"+of.Pod.Name]++
			if of.Pod.Namespace == "victim" {
				settled = time.Since(began)
				m.marks = m.marks[:many]
				return nil
			}
			return errScripted
		}
		newFixture(m, nil).sweep(t, livingReplicas{}, 10*time.Minute)
		assert.Equal(t, 1, calls["victim/pod-0"])
		assert.Less(t, settled, sweepEvery, "the mark is settled in the first sweep")
		assert.Len(t, calls, many+1, "every mark was tried")
		for name, n := range calls {
			assert.LessOrEqual(t, n, 6, "%s was not tried more often than the others", name)
		}
	})
}
