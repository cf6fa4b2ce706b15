// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/cmd/internal/cli"
)

func denial(code int32, reason metav1.StatusReason, message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: code, Reason: reason, Message: message}}
}

// TestJudge checks that a rejection by the API server overrides the verdict of Prebind.
func TestJudge(t *testing.T) {
	refusal := &binder.Refusal{Kind: framework.KindRefuse, Plugin: "p", Object: "Node a", Message: "no", Advice: "do"}
	cases := map[string]struct {
		reason  string
		answer  error
		prebind *binder.Explanation
		want    binder.Verdict
		says    string
		err     string
	}{
		"Alone":        {reason: "Prebind does not take part in the bind", want: binder.VerdictBind},
		"AloneRefused": {reason: "the API server rejects the bind without Prebind", answer: denial(409, metav1.StatusReasonConflict, "pod is already assigned"), want: binder.VerdictRefuse, says: "already assigned"},
		"Bind":         {reason: "Prebind and the API server allow the bind", prebind: &binder.Explanation{Verdict: binder.VerdictBind}, want: binder.VerdictBind},
		"Wait":         {reason: "Prebind allows a dry run of a bind that would wait", prebind: &binder.Explanation{Verdict: binder.VerdictWait}, want: binder.VerdictWait},
		"WaitRejected": {reason: "a 429 means that the bind waits", answer: denial(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, "not made yet"), prebind: &binder.Explanation{Verdict: binder.VerdictWait, Refusal: refusal}, want: binder.VerdictWait, says: "not made yet"},
		"Refused":      {reason: "Prebind rejects the bind", answer: denial(http.StatusForbidden, metav1.StatusReasonForbidden, "p: Node a: no"), prebind: &binder.Explanation{Verdict: binder.VerdictRefuse, Refusal: refusal}, want: binder.VerdictRefuse, says: "p: Node a: no"},
		"ByAnother":    {reason: "another webhook rejects a bind that Prebind allows", answer: denial(http.StatusForbidden, metav1.StatusReasonForbidden, "policy"), prebind: &binder.Explanation{Verdict: binder.VerdictBind}, want: binder.VerdictRefuse, says: "policy"},
		"Audit":        {reason: "in mode Audit, the verdict of Prebind has no effect", prebind: &binder.Explanation{Verdict: binder.VerdictRefuse, Mode: binder.ModeAudit, Refusal: refusal}, want: binder.VerdictBind},
		"NoPermission": {reason: "a missing permission of the user is not a verdict on the pod", answer: denial(http.StatusForbidden, metav1.StatusReasonForbidden, `User "x" cannot create resource "pods/binding"`), err: "pods/binding"},
		"Unreachable": {
			reason: "the API server cannot call Prebind, so the verdict is unknown",
			answer: denial(http.StatusInternalServerError, metav1.StatusReasonInternalError, `Internal error occurred: failed calling webhook "pods-binding.prebind.dev": failed to call webhook: connection refused`),
			err:    "the API server cannot reach Prebind",
		},
		"OtherUnreachable": {
			reason: "the verdict is unknown as well if another webhook cannot be called",
			answer: denial(http.StatusInternalServerError, metav1.StatusReasonInternalError, `Internal error occurred: failed calling webhook "x.example.com": failed to call webhook: connection refused`),
			err:    `cannot call the webhook "x.example.com", which is not Prebind`,
		},
		"APIServerInTrouble": {
			reason: "an error of the API server is not a rejection",
			answer: denial(http.StatusGatewayTimeout, metav1.StatusReasonTimeout, "request did not complete"), err: "the API server could not decide",
		},
		"Internal": {
			reason: "an internal error of Prebind rejects the bind", answer: denial(http.StatusInternalServerError, metav1.StatusReasonInternalError, "p: it panicked"),
			prebind: &binder.Explanation{Verdict: binder.VerdictRefuse, Refusal: refusal}, want: binder.VerdictRefuse, says: "panicked",
		},
		"NoAnswer": {reason: "the verdict is unknown without an answer", answer: errors.New("connection refused"), err: "connection refused"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			r := &report{Verdict: binder.VerdictBind, Prebind: tc.prebind}
			err := r.decide(tc.answer)
			if tc.err != "" {
				require.ErrorContains(t, err, tc.err, tc.reason)
				return
			}
			require.NoError(t, err, tc.reason)
			assert.Equal(t, tc.want, r.Verdict, tc.reason)
			assert.Contains(t, r.Reason, tc.says)
		})
	}
}

func TestReportText(t *testing.T) {
	r := &report{
		Namespace: "shop", Pod: "web", Node: "a", Verdict: binder.VerdictRefuse, Reason: "p: no", Warnings: []string{"another's"},
		Prebind: &binder.Explanation{
			Verdict: binder.VerdictRefuse, Mode: binder.ModeAudit, Incomplete: true,
			Annotations: map[string]string{"b": "2", "a": "1"}, Labels: map[string]string{"l": "3"},
			Plugins: []binder.PluginExplanation{
				{Name: "p", Verdict: binder.PluginRefuses, Refusal: &binder.Refusal{Object: "Node a", Message: "no", Advice: "another"}},
				{Name: "q", Verdict: binder.PluginWaits, WaitsFor: []string{"rain"}, Would: []string{"would dance"}, Findings: []framework.Finding{
					{Name: "csi-ready", Verdict: "waiting", Message: "no driver on a"}, {Name: "gpu", Verdict: "not-matched"},
				}},
			},
			Warnings: []string{"dry run: q would dance", "ours"},
		},
	}
	var out strings.Builder
	require.NoError(t, r.text(&out))
	assert.Equal(t, `Bind of pod shop/web to node a: would be rejected
  p: no

Prebind is in mode Audit in this namespace: it only reports the following (verdict: refuse).

PLUGIN        VERDICT       DETAIL
p             refuses       Node a: no
                            another
q             waits         waiting for rain
                            would dance
  csi-ready   waiting       no driver on a
  gpu         not-matched   

ADDED        KEY   VALUE
annotation   a     1
annotation   b     2
label        l     3

The explanation is incomplete: it is longer than the API server allows.

Warning: another's
Warning: ours
`, out.String())
}

func TestExitCode(t *testing.T) {
	assert.Equal(t, 0, cli.ExitCode(nil))
	assert.Equal(t, 1, cli.ExitCode(errors.New("any")))
	assert.Equal(t, 2, cli.ExitCode(cli.ExitError{Code: exitRefuse}))
	assert.Empty(t, cli.ExitError{Code: exitRefuse}.Error(), "the report already has the reason")
}
