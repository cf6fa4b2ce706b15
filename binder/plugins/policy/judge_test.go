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
	rejects := policy.Result{Policy: "b", Verdict: policy.Rejected, Rule: "spec.validations[0]", Message: "node n has no clique"}
	waits := policy.Result{Policy: "a", Verdict: policy.Waiting, Rule: "spec.waitFor[driver]", Message: "CSI driver not registered on n", Until: at.Add(2 * time.Minute)}
	named := func(r policy.Result, name string) policy.Result { r.Policy = name; return r }
	until := func(r policy.Result, t time.Time) policy.Result { r.Until = t; return r }
	cases := map[string]struct {
		reason  string
		results []policy.Result
		refusal string
		waiting framework.Wait
	}{
		"Allowed": {reason: "all policies allow the bind", results: []policy.Result{{Policy: "a", Verdict: policy.Allowed}, {Policy: "b", Verdict: policy.Ignored}}},
		"RejectedFirst": {
			reason: "a bind that would be rejected does not wait", results: []policy.Result{waits, rejects},
			refusal: "BindPolicy b: node n has no clique; choose another node, or see spec.validations[0] of the policy",
		},
		"RejectedTwice": {
			reason: "the message counts the others", results: []policy.Result{rejects, named(rejects, "c")},
			refusal: "BindPolicy b: node n has no clique (and 1 more policy); choose another node, or see spec.validations[0] of the policy",
		},
		"TimedOut": {
			reason: "a wait is over", results: []policy.Result{{Policy: "a", Verdict: policy.TimedOut, Rule: "spec.waitFor[driver]", Message: "still not registered"}},
			refusal: "BindPolicy a: still not registered; choose another node, or see spec.waitFor[driver] of the policy",
		},
		"Failed": {
			reason: "the policy needs a correction", results: []policy.Result{{Policy: "a", Verdict: policy.Failed, Rule: "spec.variables[x]", Message: "no such key: x"}},
			refusal: "BindPolicy a: no such key: x; correct the policy, or set failurePolicy: Ignore",
		},
		"Waiting": {
			reason: "the wait ends with the timeout", results: []policy.Result{waits},
			waiting: framework.Wait{Object: framework.Object{Kind: "BindPolicy", Name: "a"}, For: "driver: CSI driver not registered on n", Until: at.Add(2 * time.Minute)},
		},
		"WaitingWithoutMessage": {
			reason: "the default message begins with the same words", results: []policy.Result{{Policy: "a", Verdict: policy.Waiting, Rule: "spec.waitFor[driver]", Message: "waiting for driver"}},
			waiting: framework.Wait{Object: framework.Object{Kind: "BindPolicy", Name: "a"}, For: "driver"},
		},
		"WaitingTwice": {
			reason: "the bind looks again at the earliest timeout", results: []policy.Result{waits, until(named(waits, "b"), at.Add(time.Minute)), until(named(waits, "c"), at.Add(time.Hour))},
			waiting: framework.Wait{Object: framework.Object{Kind: "BindPolicy", Name: "a"}, For: "driver: CSI driver not registered on n (and 2 more policies)", Until: at.Add(time.Minute)},
		},
		"WaitingWithoutEnd": {
			reason: "zero means never", results: []policy.Result{waits, until(named(waits, "b"), time.Time{})},
			waiting: framework.Wait{Object: framework.Object{Kind: "BindPolicy", Name: "a"}, For: "driver: CSI driver not registered on n (and 1 more policy)", Until: at.Add(2 * time.Minute)},
		},
	}
	for name, tc := range cases {
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
