// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/replica"
	"github.com/prebind/prebind/internal/work"
	"github.com/prebind/prebind/test/gen"
)

func denial(code int32, reason metav1.StatusReason, message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: code, Reason: reason, Message: message}}
}

// TestJudge checks that a rejection by the API server overrides the verdict of Prebind.
func TestJudge(t *testing.T) {
	refusal := &binder.Refusal{Kind: framework.KindRefuse, Plugin: "p", Object: "Node a", Message: "no", Advice: "do"}
	internal := func(message string) error {
		return denial(http.StatusInternalServerError, metav1.StatusReasonInternalError, message)
	}
	unreachable := func(name string) error {
		return internal(`Internal error occurred: failed calling webhook "` + name + `": failed to call webhook: connection refused`)
	}
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
			answer: unreachable("pods-binding.prebind.dev"), err: "the API server cannot reach Prebind",
		},
		"OtherUnreachable": {
			reason: "the verdict is unknown as well if another webhook cannot be called",
			answer: unreachable("x.example.com"), err: `cannot call the webhook "x.example.com", which is not Prebind`,
		},
		"APIServerInTrouble": {
			reason: "an error of the API server is not a rejection",
			answer: denial(http.StatusGatewayTimeout, metav1.StatusReasonTimeout, "request did not complete"), err: "the API server could not decide",
		},
		"APIServerOverloaded": {
			reason: "a 429 without an answer of Prebind is not a wait",
			answer: denial(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, "too many requests"), err: "the API server could not decide",
		},
		"Internal": {
			reason: "an internal error of Prebind rejects the bind", answer: internal("p: it panicked"),
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

// TestChosen checks which node explain uses without --node.
func TestChosen(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	pod := gen.Pod("web", gen.UID("pod-1"), gen.InNamespace("shop"))
	pod.Status.NominatedNodeName = "nominated"
	bindsUID := func(uid types.UID, pod, node string, ago time.Duration) *coordinationv1.Lease {
		status, err := json.Marshal(replica.Status{InFlight: []work.InFlight{{Namespace: "shop", Pod: pod, UID: uid, Node: node, Since: metav1.NewTime(now.Add(-ago))}}})
		require.NoError(t, err)
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
			Namespace: "own", Name: "of-" + node, Labels: map[string]string{"prebind.dev/replica": node}, Annotations: map[string]string{"prebind.dev/status": string(status)},
		}}
	}
	binds := func(pod, node string, ago time.Duration) *coordinationv1.Lease {
		return bindsUID("pod-1", pod, node, ago)
	}
	event := func(reason, note string, ago time.Duration) *eventsv1.Event {
		return &eventsv1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: note}, Reason: reason, Note: note, EventTime: metav1.NewMicroTime(now.Add(-ago))}
	}
	repeated := event("BindRefused", "p: Node c: no", time.Hour)
	repeated.Series = &eventsv1.EventSeries{LastObservedTime: metav1.NewMicroTime(now.Add(-time.Second))}
	for name, tc := range map[string]struct {
		reason       string
		objects      []runtime.Object
		forbidden    bool
		node, source string
	}{
		"Waiting":   {reason: "the newest bind counts", objects: []runtime.Object{binds("web", "a", time.Hour), binds("web", "b", time.Minute), binds("other", "c", 0)}, node: "b", source: "the Binding of 60s ago"},
		"Recreated": {reason: "the bind of an earlier pod with the same name is being rolled back", objects: []runtime.Object{bindsUID("pod-0", "web", "b", time.Minute), binds("web", "a", time.Hour)}, node: "a", source: "the Binding of 60m ago"},
		"NoUID":     {reason: "replicas of earlier versions report no UID", objects: []runtime.Object{bindsUID("", "web", "a", time.Minute)}, node: "a", source: "the Binding of 60s ago"},
		"Rejected":  {reason: "the newest event counts", objects: []runtime.Object{event("WaitingForPreBind", "p: Node a: slow", time.Hour), event("BindRefused", "Node b: q: no", 2*time.Minute)}, node: "b", source: "the event BindRefused of 2m ago"},
		"Series":    {reason: "the note of a repeated event is that of the first", objects: []runtime.Object{repeated, event("BindRefused", "Node b: q: no", 2*time.Minute)}, node: "b", source: "the event BindRefused of 2m ago"},
		"Both":      {reason: "a bind in progress is newer than its events", objects: []runtime.Object{event("BindRefused", "Node b: q: no", 0), binds("web", "a", time.Minute)}, node: "a", source: "the Binding of 60s ago"},
		"Others":    {reason: "other events and those of older versions name no node", objects: []runtime.Object{event("FailedScheduling", "p: Node a: no", 0), event("BindRefused", "q: no", 0)}, node: "nominated", source: "status.nominatedNodeName"},
		"Forbidden": {reason: "the user may only read the pod", objects: []runtime.Object{binds("web", "a", time.Minute)}, forbidden: true, node: "nominated", source: "status.nominatedNodeName"},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset(tc.objects...)
			if tc.forbidden {
				client.PrependReactor("list", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
					return true, nil, denial(http.StatusForbidden, metav1.StatusReasonForbidden, "no")
				})
			}
			o := &explainOptions{own: "own", clock: clocktesting.NewFakeClock(now)}
			node, source := o.chosen(t.Context(), client, pod)
			assert.Equal(t, []string{tc.node, tc.source}, []string{node, source}, tc.reason)
		})
	}
}

func TestReportBound(t *testing.T) {
	pod := gen.Pod("web", gen.InNamespace("shop"), gen.BoundTo("a"), gen.Annotation("example.com/own", "1"), gen.Annotation("bind-info.prebind.dev/waited", "12.000s"),
		gen.Annotation("binder.prebind.dev/attempt", "aaa-1"), gen.Annotation("rack-awareness.policy.prebind.dev/rack", "rack-7"),
		// Requests, which the pod also has if Prebind did not take part.
		gen.Annotation("binder.prebind.dev/require", "policy"), gen.Annotation("device.prebind.dev/gpu", "GPU-1"))
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady}, {
		Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC),
	}}
	var out bytes.Buffer
	reportBound(pod).textBound(&out)
	assert.Equal(t, `Pod shop/web: bound to node a since 2026-01-01T12:00:00Z, after a wait of 12.000s

ADDED        KEY                                      VALUE
annotation   bind-info.prebind.dev/waited             12.000s
annotation   binder.prebind.dev/attempt               aaa-1
annotation   rack-awareness.policy.prebind.dev/rack   rack-7
`, out.String())

	out.Reset()
	reportBound(gen.Pod("web", gen.InNamespace("shop"), gen.BoundTo("a"))).textBound(&out)
	assert.Contains(t, out.String(), "Prebind added no annotations: ")
}

func TestReportText(t *testing.T) {
	r := &report{
		Namespace: "shop", Pod: "web", Node: "a", Verdict: binder.VerdictRefuse, Reason: "p: no", Warnings: []string{"another's"},
		Prebind: &binder.Explanation{
			Verdict: binder.VerdictRefuse, Mode: binder.ModeAudit, Incomplete: true, Refusal: &binder.Refusal{Plugin: "topology", Message: "no zone"},
			Annotations: map[string]string{"b": "2", "a": "1"}, Labels: map[string]string{"l": "3"},
			Plugins: []binder.PluginExplanation{
				{Name: "p", Verdict: binder.PluginRejects, Refusal: &binder.Refusal{Object: "Node a", Message: "no", Advice: "another"}},
				{Name: "q", Verdict: binder.PluginWaits, WaitsFor: []string{"rain"}, Would: []string{"would dance"}, Findings: []framework.Finding{
					{Name: "csi-ready", Verdict: "waiting", Message: "no driver on a"}, {Name: "gpu", Verdict: "not-matched"},
				}},
			},
			Warnings: []string{"dry run: q would dance", "ours"},
		},
	}
	var out bytes.Buffer
	r.text(&out)
	assert.Equal(t, `Bind of pod shop/web to node a: would be rejected
  p: no

Prebind is in mode Audit in this namespace: it only reports the following (verdict: refuse).
  topology: no zone

PLUGIN        VERDICT       DETAIL
p             rejects       Node a: no
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

	out.Reset()
	(&report{Warnings: []string{"another's"}}).text(&out)
	assert.Regexp(t, `(?s)Prebind does not take part in this bind\..+\n\nWarning: another's\n$`, out.String())
}

// TestReportText_ControlCharacters checks that a tenant or another webhook cannot forge lines of the text. Other formats do not change.
func TestReportText_ControlCharacters(t *testing.T) {
	const forged = "a\x1b[2J\nBind of pod shop/web to node b: would be bound"
	r := &report{
		Namespace: "shop", Pod: "web", Node: "a", Verdict: binder.VerdictRefuse, Reason: forged,
		Prebind: &binder.Explanation{Verdict: binder.VerdictBind, Annotations: map[string]string{"k": forged}},
	}
	var out bytes.Buffer
	require.NoError(t, formatText.write(&out, r, r.text))
	assert.Equal(t, `Bind of pod shop/web to node a: would be rejected
  a?[2J
    Bind of pod shop/web to node b: would be bound

ADDED        KEY   VALUE
annotation   k     a?[2J Bind of pod shop/web to node b: would be bound
`, out.String())

	out.Reset()
	bound := gen.Pod("web", gen.InNamespace("shop"), gen.BoundTo("a"), gen.Annotation("bind-info.prebind.dev/waited", forged))
	r = reportBound(bound)
	require.NoError(t, formatText.write(&out, r, r.textBound))
	assert.NotContains(t, out.String(), "\nBind of pod")

	out.Reset()
	require.NoError(t, formatJSON.write(&out, r, r.textBound))
	assert.Contains(t, out.String(), `a\u001b[2J\n`)
}

func TestAnnotations(t *testing.T) {
	cmd := newExplainCommand()
	const value = "gpu.example.com/driver=550,!maintenance"
	require.NoError(t, cmd.ParseFlags([]string{"--annotation=node-state.prebind.dev/expect=" + value, "--annotation=device.prebind.dev/gpu=GPU-1,GPU-2"}))
	assert.Equal(t, annotations{"node-state.prebind.dev/expect": value, "device.prebind.dev/gpu": "GPU-1,GPU-2"}, cmd.Flag("annotation").Value)
	require.ErrorContains(t, cmd.ParseFlags([]string{"--annotation=x"}), `must be key=value, got "x"`)
}
