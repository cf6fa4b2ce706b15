// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prebind/prebind/binder/attempt"
)

// hugeAttempts are so many attempts of a namespace, each with texts as long as a tenant
// can make them. "<" takes six bytes in JSON.
func hugeAttempts(namespace string, n int) []attempt.InFlight {
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	all := make([]attempt.InFlight, n)
	for i := range all {
		name := fmt.Sprintf("%s-%d-", namespace, i)
		all[i] = attempt.InFlight{
			Namespace: namespace, Pod: name + strings.Repeat("p", 253-len(name)), Node: strings.Repeat("n", 253), Attempt: "replica-" + name,
			Phase: "preparing", Plugin: "node-state", WaitsFor: strings.Repeat("<", 4096), Since: metav1.NewTime(began.Add(time.Duration(i) * time.Second)),
		}
	}
	return all
}

// TestStatusEncode_IsBounded: the status stays small whatever tenants do, says how much
// it leaves out, and does not leave out one tenant for another.
func TestStatusEncode_IsBounded(t *testing.T) {
	tests := map[string]struct {
		reason  string
		all     []attempt.InFlight
		leftOut bool
	}{
		"None":  {reason: "there is nothing to leave out"},
		"Few":   {reason: "all have room", all: hugeAttempts("shop", 3)},
		"Many":  {reason: "a Lease has no room for them", all: append(hugeAttempts("hostile", 200), hugeAttempts("shop", 1)...), leftOut: true},
		"Crowd": {reason: "the number does not matter", all: append(hugeAttempts("hostile", 2_000), hugeAttempts("shop", 1)...), leftOut: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			encoded, err := replicaStatus{Replica: "aaa", Problem: cut(strings.Repeat("<", 10_000))}.encode(tc.all)
			require.NoError(t, err)
			assert.LessOrEqual(t, len(encoded), statusBytes)
			var s replicaStatus
			require.NoError(t, json.Unmarshal([]byte(encoded), &s))
			assert.Equal(t, tc.leftOut, s.LeftOut > 0, tc.reason)
			assert.Equal(t, len(tc.all), len(s.InFlight)+s.LeftOut)
			assert.IsNonDecreasing(t, sinceOf(s.InFlight), "the oldest first")
			if len(tc.all) > 0 {
				assert.Contains(t, encoded, `"namespace":"shop"`, "every tenant has its turn")
			}
		})
	}
}

func sinceOf(all []attempt.InFlight) []int64 {
	since := make([]int64, 0, len(all))
	for _, f := range all {
		since = append(since, f.Since.Unix())
	}
	return since
}

func TestCut(t *testing.T) {
	assert.Equal(t, "short", cut("short"))
	assert.Len(t, cut(strings.Repeat("x", statusText+1)), statusText)
	assert.LessOrEqual(t, len(cut(strings.Repeat("ä", statusText))), statusText)
	assert.True(t, strings.HasSuffix(cut(strings.Repeat("ä", statusText)), "ä…"), "no character is cut in two")
}

// TestReadiness_Require: what is required counts at every probe, and calls that come all
// the same are decided.
func TestReadiness_Require(t *testing.T) {
	r := &readiness{}
	var problem error
	r.require(func() error { return problem })
	require.NoError(t, r.probe())
	problem = errors.New("no lease")
	require.ErrorIs(t, r.probe(), problem)
	require.NoError(t, r.check())
	problem = nil
	assert.NoError(t, r.probe())
}
