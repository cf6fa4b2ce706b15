// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/binder/framework"
)

func explanation() binder.Explanation {
	return binder.Explanation{
		Verdict: binder.VerdictWait, Mode: binder.ModeEnforce,
		Annotations: map[string]string{"topology.prebind.dev/zone": "zone-a"}, Labels: map[string]string{"topology.prebind.dev/rack": "r1"},
		Plugins: []binder.PluginExplanation{
			{Name: "device", Verdict: binder.PluginNotAsked},
			{Name: "volumebinding", Verdict: binder.PluginWaits, Would: []string{"would set selected-node"}, WaitsFor: []string{"a volume"}},
			{Name: "policy", Verdict: binder.PluginWaits, Findings: []framework.Finding{{Name: "csi-ready", Verdict: "waiting", Message: "no driver"}, {Name: "gpu", Verdict: "allowed"}}},
		},
		Warnings: []string{"dry run: größe"},
	}
}

// TestExplanation_RoundTrip checks that an encoded explanation fits into a warning and is decoded without loss.
func TestExplanation_RoundTrip(t *testing.T) {
	text, err := encodeExplanation(explanation())
	require.NoError(t, err)
	got, err := DecodeExplanation(text)
	require.NoError(t, err)
	want := explanation()
	assert.Equal(t, &want, got)

	got, err = DecodeExplanation("prebind: dry run: something")
	require.NoError(t, err)
	assert.Nil(t, got, "other warnings are not explanations")
	for _, broken := range []string{"", "***", "AAAA", text[len(explanationPrefix) : len(text)/2]} {
		_, err = DecodeExplanation(explanationPrefix + broken)
		require.Error(t, err, "%q", broken)
	}
}

// noise returns text that cannot be compressed.
func noise(seed, n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteByte("abcdefghijklmnopqrstuvwxyz0123456789"[(i*i*7+i*seed*13+seed*seed*31+(i*2654435761>>7))%36])
	}
	return b.String()
}

func TestExplanation_TooLong(t *testing.T) {
	values := func(n, size int) map[string]string {
		all := map[string]string{}
		for i := range n {
			all[fmt.Sprintf("key-%d", i)] = noise(i, size)
		}
		return all
	}
	found := func(n, size int) []framework.Finding {
		var all []framework.Finding
		for i := range n {
			name := sha256.Sum256([]byte{byte(i), byte(i >> 8)})
			all = append(all, framework.Finding{Name: hex.EncodeToString(name[:]), Verdict: "waiting", Message: noise(i, size)})
		}
		return all
	}
	cases := map[string]struct {
		reason      string
		annotations map[string]string
		findings    []framework.Finding
		// The rest is what the explanation keeps.
		keptAnnotations, keptFindings int
	}{
		"ManyFindings": {reason: "the plugins are kept", findings: found(200, 50)},
		"LeftOut":      {reason: "the verdict is kept", annotations: values(1000, 50), keptFindings: 2},
		"LongNames":    {reason: "the plugins are kept", findings: slices.Repeat([]framework.Finding{{Name: noise(1, 20000)}}, 200)},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			x := explanation()
			if tc.annotations != nil {
				x.Annotations = tc.annotations
			}
			if tc.findings != nil {
				x.Plugins[2].Findings = slices.Clone(tc.findings)
			}
			text, err := encodeExplanation(x)
			require.NoError(t, err)
			assert.LessOrEqual(t, len(text), maxWarningRunes)
			got, err := DecodeExplanation(text)
			require.NoError(t, err)
			assert.Equal(t, binder.VerdictWait, got.Verdict, tc.reason)
			if tc.findings != nil {
				assert.Equal(t, tc.findings, x.Plugins[2].Findings, "the decision is not changed")
			}
			assert.True(t, got.Incomplete)
			assert.Len(t, got.Annotations, tc.keptAnnotations, tc.reason)
			require.Len(t, got.Plugins, 3)
			require.Len(t, got.Plugins[2].Findings, tc.keptFindings, tc.reason)
		})
	}
}

// TestAnswer_Explanation checks that only a Binding with the annotation gets the explanation, without other warnings.
func TestAnswer_Explanation(t *testing.T) {
	x := explanation()
	cases := map[string]struct {
		reason      string
		annotations map[string]string
		explanation *binder.Explanation
		err         *framework.Error
		explained   bool
	}{
		"Asked":    {reason: "the Binding requests it", annotations: map[string]string{"binder.prebind.dev/explain": ""}, explanation: &x, explained: true},
		"Denied":   {reason: "denials are explained too", annotations: map[string]string{"binder.prebind.dev/explain": ""}, explanation: &x, err: framework.Refuse(framework.Object{}, "no"), explained: true},
		"NotAsked": {reason: "the Binding does not request it", explanation: &x},
		"Earnest":  {reason: "the decision has no explanation", annotations: map[string]string{"binder.prebind.dev/explain": ""}},
		"Domain":   {reason: "the annotation of another domain is ignored", annotations: map[string]string{"binder.example.com/explain": ""}, explanation: &x},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			b := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Annotations: tc.annotations}}
			response := answer(b, binder.Decision{Explanation: tc.explanation, Err: tc.err, Warnings: []string{"dry run: something"}})
			assert.Equal(t, tc.err == nil, response.Allowed)
			require.Len(t, response.Warnings, 1)
			got, err := DecodeExplanation(response.Warnings[0])
			require.NoError(t, err)
			assert.Equal(t, tc.explained, got != nil, tc.reason)
		})
	}
}

// FuzzDecodeExplanation checks that decoding any warning does not panic and does not use more memory than allowed.
func FuzzDecodeExplanation(f *testing.F) {
	encoded, err := encodeExplanation(explanation())
	require.NoError(f, err)
	bomb := binder.Explanation{Warnings: []string{strings.Repeat("a", 2*maxExplanation)}}
	packed, err := compressed(bomb)
	require.NoError(f, err)
	for _, seed := range []string{encoded, encoded[:len(encoded)-3], explanationPrefix + packed, explanationPrefix, explanationPrefix + "AA", "prebind: dry run"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, warning string) {
		x, err := DecodeExplanation(warning)
		switch {
		case err != nil:
			assert.Nil(t, x)
		case !strings.HasPrefix(warning, explanationPrefix):
			assert.Nil(t, x)
		default:
			require.NotNil(t, x)
			assert.LessOrEqual(t, len(strings.Join(x.Warnings, "")), maxExplanation)
		}
	})
}
