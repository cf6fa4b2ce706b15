// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/framework/frameworktest"
	"github.com/prebind/prebind/internal/policy"
)

func TestJudge(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	ofA := framework.Object{Kind: "BindPolicy", Name: "a"}
	rejects := policy.Result{Policy: "b", Verdict: policy.Rejected, Rule: "spec.validations[0]", Message: "node n has no clique"}
	waits := policy.Result{Policy: "a", Verdict: policy.Waiting, Rule: "spec.waitFor[driver]", Message: "CSI driver not registered on n", Until: at.Add(2 * time.Minute)}
	named := func(r policy.Result, name string) policy.Result { r.Policy = name; return r }
	until := func(r policy.Result, t time.Time) policy.Result { r.Until = t; return r }
	for name, tc := range map[string]struct {
		reason  string
		results []policy.Result
		refusal string
		waiting framework.Wait
	}{
		"Rejected": {
			reason:  "a bind that would be rejected does not wait, and the message counts the others",
			results: []policy.Result{waits, rejects, named(rejects, "c")},
			refusal: "BindPolicy b: node n has no clique (and 1 more policy); choose another node, or see spec.validations[0] of the policy",
		},
		"WaitingWithoutMessage": {
			reason: "the default message begins with the same words", results: []policy.Result{{Policy: "a", Verdict: policy.Waiting, Rule: "spec.waitFor[driver]", Message: "waiting for driver"}},
			waiting: framework.Wait{Object: ofA, For: "driver"},
		},
		"Waiting": {
			reason:  "the bind looks again at the earliest timeout, and zero means never",
			results: []policy.Result{until(waits, time.Time{}), until(named(waits, "b"), at.Add(time.Minute)), until(waits, time.Time{}), waits},
			waiting: framework.Wait{Object: ofA, For: "driver: " + waits.Message + " (and 3 more policies)", Until: at.Add(time.Minute)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			verdict, refusal := judge(tc.results)
			assert.Equal(t, tc.waiting, verdict.Wait, tc.reason)
			if tc.refusal == "" {
				assert.NoError(t, refusal, tc.reason)
				return
			}
			require.EqualError(t, refusal, tc.refusal, tc.reason)
			assert.True(t, frameworktest.IsKind(refusal, framework.KindRefuse))
		})
	}
}
