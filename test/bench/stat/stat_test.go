// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package stat

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestReadWrite(t *testing.T) {
	samples := []Sample{{Variant: "prebind", Round: 0, Metric: "binds/s", Value: 812.5}, {Variant: "none", Round: 1, Metric: `p99, "ms"`, Value: 1e-6}}
	var out bytes.Buffer
	require.NoError(t, Write(&out, samples))
	got, err := Read(&out)
	require.NoError(t, err)
	assert.Equal(t, samples, got)
}

func TestReadErrors(t *testing.T) {
	for name, text := range map[string]string{
		"Empty":  "",
		"Header": "a,b,c,d\n",
		"Fields": "variant,round,metric,value\nprebind,1\n",
		"Round":  "variant,round,metric,value\nprebind,first,p50,1\n",
		"Value":  "variant,round,metric,value\nprebind,1,p50,fast\n",
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Read(strings.NewReader(text))
			require.Error(t, err)
		})
	}
}

func TestRatios(t *testing.T) {
	samples := []Sample{
		{"prebind", 1, "p50", 6}, {"none", 1, "p50", 3},
		{"prebind", 0, "p50", 4}, {"none", 0, "p50", 4}, {"none", 0, "p99", 1},
		{"prebind", 2, "p50", 5},
		{"prebind", 3, "p50", 5}, {"none", 3, "p50", 0},
	}
	cases := map[string]struct {
		reason                   string
		metric, variant, against string
		want                     []float64
	}{
		"ByRound": {reason: "ratios compare values of the same round; rounds without a value, or with 0, are omitted", metric: "p50", variant: "prebind", against: "none", want: []float64{1, 2}},
		"Metric":  {reason: "the variant has no values of this metric", metric: "p99", variant: "prebind", against: "none"},
		"Variant": {reason: "the other variant has no values", metric: "p50", variant: "prebind", against: "constant"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tc.want, Ratios(samples, tc.metric, tc.variant, tc.against), tc.reason)
		})
	}
	assert.Equal(t, []float64{4, 6, 5, 5}, Values(samples, "p50", "prebind"), "values are in the order of rounds")
}

func TestQuantile(t *testing.T) {
	cases := map[string]struct {
		reason string
		values []float64
		q      float64
		want   float64
	}{
		"None":      {reason: "without values, the quantile is 0", q: 0.5},
		"One":       {reason: "a single value is every quantile", values: []float64{7}, q: 0.9, want: 7},
		"Odd":       {reason: "the median is the middle value, in any order", values: []float64{9, 1, 5}, q: 0.5, want: 5},
		"Even":      {reason: "the median is the mean of the two middle values", values: []float64{1, 3, 5, 9}, q: 0.5, want: 4},
		"NineOfTen": {reason: "the value is interpolated", values: []float64{0, 100}, q: 0.9, want: 90},
		"Last":      {reason: "the quantile 1 is the maximum", values: []float64{1, 2, 3}, q: 1, want: 3},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			assert.InDelta(t, tc.want, Quantile(tc.values, tc.q), 1e-9, tc.reason)
		})
	}
}

func TestMean(t *testing.T) {
	assert.InDelta(t, 2, Mean([]float64{1, 3}), 0)
	assert.Zero(t, Mean(nil))
}
