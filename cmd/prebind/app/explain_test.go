// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientsetfake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/binder/framework"
)

func denial(code int32, reason metav1.StatusReason, message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: code, Reason: reason, Message: message}}
}

// The API server has the last word, and Prebind what it would only do in earnest.
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
		"Alone":        {reason: "Prebind has no part in it", want: binder.VerdictBind},
		"AloneRefused": {reason: "the API server refuses by itself", answer: denial(409, metav1.StatusReasonConflict, "pod is already assigned"), want: binder.VerdictRefuse, says: "already assigned"},
		"Bind":         {reason: "both say so", prebind: &binder.Explanation{Verdict: binder.VerdictBind}, want: binder.VerdictBind},
		"Wait":         {reason: "a dry run goes through, a bind would wait", prebind: &binder.Explanation{Verdict: binder.VerdictWait}, want: binder.VerdictWait},
		"WaitAnew":     {reason: "429 is not yet", answer: denial(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, "not made yet"), prebind: &binder.Explanation{Verdict: binder.VerdictWait, Refusal: refusal}, want: binder.VerdictWait, says: "not made yet"},
		"Refused":      {reason: "by Prebind", answer: denial(http.StatusForbidden, metav1.StatusReasonForbidden, "p: Node a: no"), prebind: &binder.Explanation{Verdict: binder.VerdictRefuse, Refusal: refusal}, want: binder.VerdictRefuse, says: "p: Node a: no"},
		"ByAnother":    {reason: "another webhook refuses what Prebind would let go", answer: denial(http.StatusForbidden, metav1.StatusReasonForbidden, "policy"), prebind: &binder.Explanation{Verdict: binder.VerdictBind}, want: binder.VerdictRefuse, says: "policy"},
		"Audit":        {reason: "it goes ahead whatever Prebind says", prebind: &binder.Explanation{Verdict: binder.VerdictRefuse, Mode: binder.ModeAudit, Refusal: refusal}, want: binder.VerdictBind},
		"NoPermission": {reason: "that is the user's, not the pod's", answer: denial(http.StatusForbidden, metav1.StatusReasonForbidden, `User "x" cannot create resource "pods/binding"`), err: "pods/binding"},
		"Unreachable": {
			reason: "the API server cannot ask Prebind, so nobody knows what it would say",
			answer: denial(http.StatusInternalServerError, metav1.StatusReasonInternalError, `Internal error occurred: failed calling webhook "pods-binding.prebind.dev": failed to call webhook: connection refused`),
			err:    "the API server cannot reach Prebind",
		},
		"OtherUnreachable": {
			reason: "nor what the bind would come to where another webhook is the one",
			answer: denial(http.StatusInternalServerError, metav1.StatusReasonInternalError, `Internal error occurred: failed calling webhook "x.example.com": failed to call webhook: connection refused`),
			err:    `cannot call the webhook "x.example.com", which is not Prebind`,
		},
		"APIServerInTrouble": {
			reason: "an API server without etcd refuses nothing",
			answer: denial(http.StatusGatewayTimeout, metav1.StatusReasonTimeout, "request did not complete"), err: "cannot decide on the bind",
		},
		"Internal": {
			reason: "a failure of Prebind's own keeps the pod from being bound", answer: denial(http.StatusInternalServerError, metav1.StatusReasonInternalError, "p: it panicked"),
			prebind: &binder.Explanation{Verdict: binder.VerdictRefuse, Refusal: refusal}, want: binder.VerdictRefuse, says: "panicked",
		},
		"NoAnswer": {reason: "nothing was found out", answer: errors.New("connection refused"), err: "connection refused"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			r := &report{Verdict: binder.VerdictBind, Prebind: tc.prebind}
			err := r.judge(tc.answer)
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
		Namespace: "shop", Pod: "web", Node: "a", Verdict: binder.VerdictRefuse, Reason: "p: no", Warnings: []string{"somebody's"},
		Prebind: &binder.Explanation{
			Verdict: binder.VerdictRefuse, Mode: binder.ModeAudit, Incomplete: true,
			Annotations: map[string]string{"b": "2", "a": "1"}, Labels: map[string]string{"l": "3"},
			Plugins: []binder.PluginExplanation{
				{Name: "p", Verdict: binder.PluginRefuses, Refusal: &binder.Refusal{Object: "Node a", Message: "no", Advice: "another"}},
				{Name: "q", Verdict: binder.PluginWaits, WaitsFor: []string{"rain"}, Would: []string{"would dance"}},
			},
			Warnings: []string{"dry run: q would dance", "ours"},
		},
	}
	var out strings.Builder
	require.NoError(t, r.text(&out))
	assert.Equal(t, `Pod shop/web to Node a: it would be refused
  p: no

Prebind is in audit mode here: it would only report what follows (verdict: refuse), and add nothing.

PLUGIN   VERDICT   DETAIL
p        refuses   Node a: no
                   another
q        waits     waits for rain
                   would dance

ADDED        KEY   VALUE
annotation   a     1
annotation   b     2
label        l     3

Some of it is left out: it is longer than the API server passes on.

Warning: somebody's
Warning: ours
`, out.String())
}

func TestExitCode(t *testing.T) {
	assert.Equal(t, 0, ExitCode(nil))
	assert.Equal(t, 1, ExitCode(errors.New("any")))
	assert.Equal(t, 2, ExitCode(exitError{code: exitRefuse}))
	assert.Empty(t, exitError{code: exitRefuse}.Error(), "the report says it all")
}

func TestStatusText(t *testing.T) {
	now := time.Now()
	var out strings.Builder
	text := (&statusOptions{clock: clocktesting.NewFakeClock(now)}).text
	require.NoError(t, text("own", nil)(&out))
	assert.Equal(t, "No replica of Prebind has a lease in the namespace own.\n", out.String())

	ago := func(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }
	all := []replicaStatus{
		{Replica: "aaa", Pod: "prebind-1", Version: "v1", Config: "123", Mode: "Enforce", Attempts: map[string]int{"preparing": 3, "prepared": 1}, LeftOut: 3, Holds: 2, MaxHolds: 32, Told: ago(3 * time.Second), InFlight: []binder.InFlight{
			{Namespace: "shop", Pod: "web", Node: "a", Attempt: "aaa-1", Phase: "preparing", Plugin: "q", WaitsFor: "rain", Since: ago(time.Minute), Budget: metav1.Duration{Duration: 10 * time.Minute}},
		}},
		{Replica: "bbb", Problem: "draining", Told: ago(time.Second), InFlight: []binder.InFlight{
			{Namespace: "shop", Pod: "old", Node: "b", Attempt: "bbb-1", Phase: "prepared", Since: ago(time.Hour), Budget: metav1.Duration{Duration: time.Hour}},
		}},
		{Replica: "ccc", Told: ago(time.Minute)},
	}
	out.Reset()
	require.NoError(t, text("own", all)(&out))
	assert.Equal(t, `REPLICA   POD         VERSION   MODE      CONFIG   PREPARING   PREPARED   HOLDS   TOLD      READY
aaa       prebind-1   v1        Enforce   123      3           1          2/32    3s ago    yes
bbb       -           -         -         -        0           0          0/0     1s ago    no: draining
ccc       -           -         -         -        0           0          0/0     60s ago   unknown: it has told nothing for a while

NAMESPACE   POD   NODE   REPLICA   PHASE       FOR   OF    PLUGIN   WAITS FOR
shop        old   b      bbb       prepared    60m   60m   -        -
shop        web   a      aaa       preparing   60s   10m   q        rain

3 more are not shown: each replica reports at most 64 KiB.
`, out.String())
}

// TestStatusOfAWrongClock: that is said, and what it tells is put right.
func TestStatusOfAWrongClock(t *testing.T) {
	written := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	client := clientsetfake.NewClientset()
	// The fake client would note its own time.
	client.PrependReactor("list", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
		list := &coordinationv1.LeaseList{}
		for id, ahead := range map[string]time.Duration{"aaa": time.Hour, "bbb": -90 * time.Second, "ccc": 4 * time.Second} {
			told, err := json.Marshal(replicaStatus{Replica: id, InFlight: []binder.InFlight{{Pod: "web", Since: metav1.NewTime(written.Add(ahead - time.Minute))}}})
			require.NoError(t, err)
			lease := coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{RenewTime: new(metav1.NewMicroTime(written.Add(ahead)))}}
			lease.Labels, lease.Annotations = map[string]string{"prebind.dev/replica": id}, map[string]string{"prebind.dev/status": string(told)}
			lease.ManagedFields = []metav1.ManagedFieldsEntry{{Time: new(metav1.NewTime(written))}}
			list.Items = append(list.Items, lease)
		}
		return true, list, nil
	})
	all, err := readStatus(t.Context(), client, "prebind-system")
	require.NoError(t, err)
	require.Len(t, all, 3)
	for i, want := range []string{"yes, but its clock is 60m ahead of the API server's", "yes, but its clock is 90s behind the API server's", "yes"} {
		assert.Equal(t, want, all[i].health(written))
		assert.WithinDuration(t, written, all[i].Told.Time, 0, "the API server knows")
		assert.WithinDuration(t, written.Add(-time.Minute), all[i].InFlight[0].Since.Time, clocksDiffer)
	}
	all[0].Problem = "draining"
	assert.Equal(t, "no: draining, and its clock is 60m ahead of the API server's", all[0].health(written))
}
