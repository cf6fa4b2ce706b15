// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/framework/frameworktest"
	"github.com/prebind/prebind/internal/policy"
	"github.com/prebind/prebind/policy/v1alpha1"
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

func TestArguments(t *testing.T) {
	assert.Empty(t, (&Arguments{KeyPrefixes: []string{"example.com", "ray.io", "*.ray.io"}}).Validate(nil))
	const dns = "must be a DNS subdomain such as ray.io, or *.ray.io for its subdomains"
	for prefix, want := range map[string]string{
		"": dns, "*.": dns, "*": dns, "ray.io/": dns, "Ray.io": dns,
		"kubernetes.io": "keys of kubernetes.io are never allowed", "*.k8s.io": "keys of k8s.io", "a.prebind.dev": "keys of prebind.dev",
	} {
		problems := (&Arguments{KeyPrefixes: []string{"example.com", prefix}}).Validate(nil)
		require.Len(t, problems, 1)
		assert.Equal(t, "keyPrefixes[1]", problems[0].Field)
		assert.ErrorContains(t, problems[0], want)
	}
}

func TestMetrics(t *testing.T) {
	m := newMetrics()
	m.begin("a", false)
	count := func(result string) float64 {
		return testutil.ToFloat64(m.results.WithLabelValues("a", "enforce", result))
	}
	assert.Equal(t, 7, testutil.CollectAndCount(m.results), "the first result is an increase")
	m.count(policy.Result{Policy: "a", Verdict: policy.Allowed, Waived: []string{"a", "b"}})
	assert.InDelta(t, 1, count("allowed"), 0)
	assert.InDelta(t, 2, count(resultWaived), 0)
	m.forget("a")
	assert.Zero(t, testutil.CollectAndCount(m.results), "the series of a deleted policy are gone")
}

// errForbidden is the answer to a watch without a role.
var errForbidden = apierrors.NewForbidden(schema.GroupResource{Group: "storage.k8s.io", Resource: "csinodes"}, "", errors.New("no role"))

func TestWatchProblem(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, want, text string
		err                error
	}{
		"Forbidden": {
			reason: "the message contains the missing rule", err: fmt.Errorf("selection: %w", errForbidden), want: v1alpha1.ReasonForbidden,
			text: "selection: csinodes.storage.k8s.io is forbidden: no role; " +
				`apply a ClusterRole with the label rbac.prebind.dev/aggregate-to-policy: "true" and the rule {apiGroups: ["storage.k8s.io"], resources: [csinodes], verbs: [get, list, watch]}`,
		},
		"UnknownKind": {
			reason: "the kind can be installed later", want: v1alpha1.ReasonUnknownKind,
			err: &meta.NoKindMatchError{GroupKind: schema.GroupKind{Group: "example.com", Kind: "Rack"}, SearchedVersions: []string{"v1"}},
			text: "the API server does not serve the kind: " +
				`no matches for kind "Rack" in version "example.com/v1"; install it, or correct apiVersion and kind`,
		},
		"Watch": {
			reason: "the API server may be slow", err: context.DeadlineExceeded, want: v1alpha1.ReasonWatchFailed,
			text: "the watch of CSINode objects did not begin: context deadline exceeded; Prebind tries again",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := watchProblem("CSINode", tc.err)
			assert.Equal(t, tc.want, got, tc.reason)
			require.EqualError(t, err, tc.text)
		})
	}
}

func TestRuleFor(t *testing.T) {
	assert.Empty(t, ruleFor(&apierrors.StatusError{ErrStatus: metav1.Status{Reason: metav1.StatusReasonForbidden}}))
}
