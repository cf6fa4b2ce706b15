// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"crypto/rand"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/binder/framework"
)

// TestDeny_Repeats checks which clients repeat a request after a denial.
func TestDeny_Repeats(t *testing.T) {
	cases := map[framework.Kind]struct {
		reason string
		// client is set if client-go repeats, and scheduler if kube-scheduler v1.37 or newer repeats
		// (kubernetes/kubernetes#138855), or a client that also repeats conflicts.
		client, scheduler bool
	}{
		framework.KindWait:     {reason: "the same Binding can succeed later", client: true},
		framework.KindRefuse:   {reason: "the scheduler must choose another node"},
		framework.KindStale:    {reason: "the scheduler must read the pod again"},
		framework.KindInvalid:  {reason: "the same Binding never succeeds"},
		framework.KindInternal: {reason: "the failure may be temporary, and kube-scheduler limits its retries", scheduler: true},
	}
	assert.Len(t, cases, len(codes), "every kind has a test case")
	for kind, tc := range cases {
		t.Run(string(kind), func(t *testing.T) {
			err := &apierrors.StatusError{ErrStatus: *deny(&framework.Error{Kind: kind}, 0).Result}
			assert.Equal(t, tc.client, apierrors.IsTooManyRequests(err), tc.reason)
			assert.Equal(t, tc.scheduler, apierrors.IsInternalError(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsConflict(err), tc.reason)
			assert.False(t, apierrors.IsNotFound(err))
		})
	}
}

// TestDeny_Bounded checks that the size of a denial is limited for any error.
func TestDeny_Bounded(t *testing.T) {
	huge := strings.Repeat("<\n", 1<<20)
	err := &framework.Error{Kind: framework.KindInvalid, Plugin: huge, Object: framework.Object{Kind: huge, Namespace: huge, Name: huge}, Message: huge, Advice: huge}
	for range 1000 {
		err.Fields = append(err.Fields, framework.Field{Path: huge, Message: huge})
	}
	response := deny(err, 0)
	response.Warnings = warnings([]string{strings.Repeat("<", maxWarningRunes-len("prebind: ")), huge})
	assert.Len(t, response.Warnings, 1)
	encoded, failed := json.Marshal(&admissionv1.AdmissionReview{Response: &response.AdmissionResponse})
	require.NoError(t, failed)
	assert.Less(t, len(encoded), 128<<10)
}

func TestWarnings(t *testing.T) {
	long := func(runes int) string { return strings.Repeat("ä", runes-len("prebind: ")) }
	cases := map[string]struct {
		reason string
		all    []string
		want   int
	}{
		"JustFits":   {reason: "the limit counts runes, not bytes", all: []string{long(maxWarningRunes)}, want: 1},
		"TooLong":    {reason: "a warning is not truncated", all: []string{long(maxWarningRunes + 1)}},
		"OneTooMany": {reason: "the last warning does not fit", all: []string{long(2000), long(2000), long(97)}, want: 2},
		"LastFits":   {reason: "the last warning just fits", all: []string{long(2000), long(2000), long(96)}, want: 3},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got := warnings(tc.all)
			require.Len(t, got, tc.want, tc.reason)
			for i, w := range got {
				assert.Equal(t, "prebind: "+tc.all[i], w)
			}
		})
	}
}

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

func TestExplanation_TooLong(t *testing.T) {
	annotations, findings := map[string]string{}, []framework.Finding{}
	for range 1000 { // Random texts cannot be compressed.
		annotations[rand.Text()] = rand.Text()
		findings = append(findings, framework.Finding{Name: rand.Text(), Verdict: "waiting", Message: rand.Text()})
	}
	cases := map[string]struct {
		reason      string
		annotations map[string]string
		findings    []framework.Finding
		// The rest is what the explanation keeps.
		keptAnnotations, keptFindings int
	}{
		"ManyFindings": {reason: "the plugins are kept", findings: findings},
		"LeftOut":      {reason: "the verdict is kept", annotations: annotations, keptFindings: 2},
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
