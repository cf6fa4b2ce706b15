// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package bindpolicy

import (
	"testing"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prebind/prebind/policy/v1alpha1"
)

func TestDecide(t *testing.T) {
	first, second := &entry{name: "a", uid: "a-1", generation: 1}, &entry{name: "a", uid: "a-1", generation: 2}
	broken := &problem{reason: v1alpha1.ReasonCompileError, message: "spec.validations[0].expression: undeclared reference"}
	cases := map[string]struct {
		reason string
		// generation is that of the policy in the cluster. Zero means that the policy does not exist.
		generation int64
		uid        string
		latest     *prepared
		last       *entry

		inForce     *entry
		wantState   state
		known       bool
		wantReason  string
		wantMessage string
	}{
		"New": {
			reason: "the first generation is in force as soon as it is usable", generation: 1,
			latest: &prepared{uid: "a-1", generation: 1, entry: first, done: true}, inForce: first,
			wantState: stateInForce, known: true, wantReason: v1alpha1.ReasonInForce, wantMessage: "generation 1 is in force",
		},
		"NotPreparedYet": {
			reason: "the policy has just been created", generation: 1, wantState: stateNotReady,
		},
		"WatchesBegin": {
			reason: "a policy without its objects cannot decide", generation: 1,
			latest: &prepared{uid: "a-1", generation: 1, entry: first}, wantState: stateNotReady,
		},
		"NextWatchesBegin": {
			reason: "the last generation stays in force until the next one is usable", generation: 2, last: first,
			latest: &prepared{uid: "a-1", generation: 2, entry: second}, inForce: first, wantState: stateOutdated,
		},
		"Next": {
			reason: "the next generation replaces the last one", generation: 2, last: first,
			latest: &prepared{uid: "a-1", generation: 2, entry: second, done: true}, inForce: second,
			wantState: stateInForce, known: true, wantReason: v1alpha1.ReasonInForce, wantMessage: "generation 2 is in force",
		},
		"BrokenNext": {
			reason: "a broken generation leaves the last good one in force", generation: 2, last: first,
			latest: &prepared{uid: "a-1", generation: 2, done: true, problem: broken}, inForce: first,
			wantState: stateOutdated, known: true, wantReason: v1alpha1.ReasonCompileError,
			wantMessage: "spec.validations[0].expression: undeclared reference; generation 1 stays in force",
		},
		"BrokenFirst": {
			reason: "there is no good generation", generation: 1, latest: &prepared{uid: "a-1", generation: 1, done: true, problem: broken},
			wantState: stateNotReady, known: true, wantReason: v1alpha1.ReasonCompileError,
			wantMessage: "spec.validations[0].expression: undeclared reference; the policy is not in force",
		},
		"StillInForce": {
			reason: "a later pass changes nothing", generation: 1, last: first,
			latest: &prepared{uid: "a-1", generation: 1, entry: first, done: true}, inForce: first,
			wantState: stateInForce, known: true, wantReason: v1alpha1.ReasonInForce, wantMessage: "generation 1 is in force",
		},
		"OldResult": {
			reason: "the result of another generation does not count", generation: 3, last: first,
			latest: &prepared{uid: "a-1", generation: 2, entry: second, done: true}, inForce: first, wantState: stateOutdated,
		},
		"Deleted": {
			reason: "a deleted policy leaves the set", last: first, latest: &prepared{uid: "a-1", generation: 1, entry: first, done: true},
		},
		"Recreated": {
			reason: "a policy with another UID is another policy, even if it is not usable", generation: 1, uid: "a-2", last: first,
			latest: &prepared{uid: "a-1", generation: 1, entry: first, done: true}, wantState: stateNotReady,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var policies []v1alpha1.BindPolicy
			if tc.generation > 0 {
				b := v1alpha1.BindPolicy{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "a-1", Generation: tc.generation}}
				if tc.uid != "" {
					b.UID = "a-2"
				}
				policies = append(policies, b)
			}
			last := map[string]*entry{}
			if tc.last != nil {
				last["a"] = tc.last
			}
			latest := map[string]*prepared{}
			if tc.latest != nil {
				latest["a"] = tc.latest
			}
			inForce, verdicts := decide(policies, latest, last)
			assert.Same(t, tc.inForce, inForce["a"], tc.reason)
			got := verdicts["a"]
			assert.Equal(t, tc.wantState, got.state, tc.reason)
			assert.Equal(t, tc.known, got.known, tc.reason)
			assert.Equal(t, tc.wantReason, got.reason, tc.reason)
			assert.Equal(t, tc.wantMessage, got.message, tc.reason)
		})
	}
}

func TestOrdered(t *testing.T) {
	a, b, c := &entry{name: "a"}, &entry{name: "b"}, &entry{name: "c"}
	assert.Equal(t, set{a, b, c}, ordered(map[string]*entry{"c": c, "a": a, "b": b}))
}
