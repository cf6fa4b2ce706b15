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
	assert.Empty(t, (&Arguments{KeyPrefixes: []string{"example.com", "ray.io"}}).Validate(nil))
	for prefix, want := range map[string]string{
		"": "must be a DNS subdomain such as ray.io, or *.ray.io for its subdomains", "kubernetes.io": "keys of kubernetes.io are never allowed",
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
