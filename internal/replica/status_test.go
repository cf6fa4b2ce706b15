// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientsetfake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/prebind/prebind/internal/work"
)

// hugeAttempts returns n attempts of a namespace with the longest texts that a tenant can write.
// "<" takes six bytes in JSON.
func hugeAttempts(namespace string, n int) []work.InFlight {
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	all := make([]work.InFlight, n)
	for i := range all {
		name := fmt.Sprintf("%s-%d-", namespace, i)
		all[i] = work.InFlight{
			Namespace: namespace, Pod: name + strings.Repeat("p", 253-len(name)), Node: strings.Repeat("n", 253), Attempt: "replica-" + name,
			Phase: "preparing", Plugin: "node-state", WaitsFor: strings.Repeat("<", 4096), Since: metav1.NewTime(began.Add(time.Duration(i) * time.Second)),
		}
	}
	return all
}

// TestStatus_EncodeIsBounded: the status stays small whatever tenants do, says how much
// it leaves out, and does not leave out one tenant for another.
func TestStatus_EncodeIsBounded(t *testing.T) {
	tests := map[string]struct {
		reason  string
		all     []work.InFlight
		leftOut bool
	}{
		"None":  {reason: "an empty status is complete"},
		"Few":   {reason: "all attempts fit", all: hugeAttempts("shop", 3)},
		"Many":  {reason: "a Lease has no room for them", all: append(hugeAttempts("hostile", 200), hugeAttempts("shop", 1)...), leftOut: true},
		"Crowd": {reason: "the number does not matter", all: append(hugeAttempts("hostile", 2_000), hugeAttempts("shop", 1)...), leftOut: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			encoded, err := Status{Replica: "aaa", Problem: strings.Repeat("<", 10_000)}.Encode(tc.all)
			require.NoError(t, err)
			assert.LessOrEqual(t, len(encoded), MaxStatus)
			var s Status
			require.NoError(t, json.Unmarshal([]byte(encoded), &s))
			assert.Equal(t, tc.leftOut, s.LeftOut > 0, tc.reason)
			assert.Equal(t, len(tc.all), len(s.InFlight)+s.LeftOut)
			assert.True(t, slices.IsSortedFunc(s.InFlight, func(a, b work.InFlight) int { return a.Since.Compare(b.Since.Time) }), "the oldest first")
			if len(tc.all) > 0 {
				assert.Contains(t, encoded, `"namespace":"shop"`, "every tenant has its turn")
			}
		})
	}
}

// TestStatuses: the status corrects the times of a replica with a wrong clock.
func TestStatuses(t *testing.T) {
	written := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	client := clientsetfake.NewClientset()
	// The fake client would note its own time.
	client.PrependReactor("list", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
		list := &coordinationv1.LeaseList{}
		for id, ahead := range map[string]time.Duration{"aaa": time.Hour, "bbb": -90 * time.Second, "ccc": 4 * time.Second} {
			status, err := json.Marshal(Status{Replica: id, InFlight: []work.InFlight{{Pod: "web", Since: metav1.NewTime(written.Add(ahead - time.Minute))}}})
			require.NoError(t, err)
			lease := coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{RenewTime: new(metav1.NewMicroTime(written.Add(ahead)))}}
			lease.Labels, lease.Annotations = map[string]string{label: id}, map[string]string{statusAnnotation: string(status)}
			lease.ManagedFields = []metav1.ManagedFieldsEntry{{Time: new(metav1.NewTime(written))}}
			list.Items = append(list.Items, lease)
		}
		return true, list, nil
	})
	all, err := Statuses(t.Context(), client, "prebind-system")
	require.NoError(t, err)
	require.Len(t, all, 3)
	for i, want := range []time.Duration{time.Hour, -90 * time.Second, 0} {
		assert.Equal(t, want, all[i].ClockAhead.Duration)
		assert.WithinDuration(t, written, all[i].Reported.Time, 0, "the API server's clock counts")
		assert.WithinDuration(t, written.Add(-time.Minute), all[i].InFlight[0].Since.Time, clockTolerance)
	}
}
