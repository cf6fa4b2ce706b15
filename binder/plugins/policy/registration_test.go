// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/prebind/prebind/internal/policy"
)

func TestArguments(t *testing.T) {
	cases := map[string]struct {
		reason, prefix, want string
	}{
		"Other":      {reason: "the operator allows the prefix", prefix: "ray.io"},
		"Empty":      {reason: "an empty prefix would allow every key", want: `must be a DNS subdomain such as ray.io, or *.ray.io for its subdomains`},
		"Kubernetes": {reason: "Kubernetes reserves the keys", prefix: "kubernetes.io", want: "keys of kubernetes.io are never allowed"},
		"Prebind":    {reason: "the keys of mutators and plugins are not for policies", prefix: "device.prebind.dev", want: "keys of prebind.dev are never allowed"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			problems := (&Arguments{KeyPrefixes: []string{"example.com", tc.prefix}}).Validate(nil)
			if tc.want == "" {
				assert.Empty(t, problems, tc.reason)
				return
			}
			require.Len(t, problems, 1, tc.reason)
			assert.Equal(t, "keyPrefixes[1]", problems[0].Field)
			assert.ErrorContains(t, problems[0], tc.want, tc.reason)
		})
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
