// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Denial is a denial of Prebind as the API server sends it, with Prebind's own decision.
type Denial struct {
	Decision Kind          `json:"decision"`
	Status   metav1.Status `json:"status"`
}

// Denials returns the denials in Prebind's golden tests.
func Denials(t *testing.T) map[string]Denial {
	t.Helper()
	var all map[string]Denial
	Load(t, "denials.json", &all)
	require.NotEmpty(t, all)
	return all
}

// TestClassify_Denials checks every denial in Prebind's golden tests.
func TestClassify_Denials(t *testing.T) {
	seen := map[Kind]bool{None: true}
	for name, d := range Denials(t) {
		t.Run(name, func(t *testing.T) {
			a := Classify(&apierrors.StatusError{ErrStatus: d.Status})
			assert.Equal(t, d.Decision, a.Kind)
			assert.NotEmpty(t, a.Plugin)
			assert.Equal(t, a.Kind == Waiting, a.Delay > 0, "a client that must repeat the Binding needs a delay")
			assert.Equal(t, a.Kind == Invalid, len(a.Fields) > 0, "the author of an invalid Binding needs its fields")
			assert.Contains(t, a.Message, a.Plugin+": ")
			assert.NotContains(t, a.Message, WebhookName)
		})
		seen[d.Decision] = true
	}
	assert.Equal(t, map[Kind]bool{None: true, Waiting: true, Refused: true, Stale: true, Invalid: true, Internal: true}, seen,
		"the golden tests contain every kind")
}

func TestClassify_Content(t *testing.T) {
	all := Denials(t)
	cases := map[string]struct {
		reason string
		want   Answer
	}{
		"volumebinding-waiting": {reason: "the object has a namespace", want: Answer{
			Kind: Waiting, Plugin: "volumebinding", Object: Object{Kind: "PersistentVolumeClaim", Namespace: "shop", Name: "data"}, Delay: time.Second,
			Message: "volumebinding: PersistentVolumeClaim shop/data: waiting for provisioning on node-a (5s); retry the Binding",
		}},
		"device-taken": {reason: "the object has no namespace", want: Answer{
			Kind: Refused, Plugin: "device", Object: Object{Kind: "Node", Name: "node-a"},
			Message: "device: Node node-a: device GPU-1 (gpu) is held by pod shop/train-0: requested 0.5, free 0; choose other devices or another node",
		}},
		"node-ready-invalid": {reason: "the field and its problem are separate", want: Answer{
			Kind: Invalid, Plugin: "node-ready", Object: Object{Kind: "Binding", Namespace: "shop", Name: "web"},
			Fields:  []Field{{Path: "metadata.annotations[node-ready.prebind.dev/timeout]", Message: `must be a positive duration such as 5m, got "soon"`}},
			Message: `node-ready: Binding shop/web: annotation node-ready.prebind.dev/timeout must be a positive duration such as 5m, got "soon"; correct the annotation`,
		}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tc.want, Classify(&apierrors.StatusError{ErrStatus: all[name].Status}), tc.reason)
		})
	}
}

func TestClassify_Errors(t *testing.T) {
	waiting := &apierrors.StatusError{ErrStatus: Denials(t)["device-locked"].Status}
	// The text that priority and fairness sends is not a Status. client-go creates this error from it.
	throttled := apierrors.NewGenericServerResponse(
		http.StatusTooManyRequests, "post", corev1.Resource("pods"), "web", "Too many requests, please try again later.", 1, true)
	unknown := &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusTeapot, Message: deniedBy + "x"}}
	for name, tc := range map[string]struct {
		reason string
		err    error
		want   Kind
	}{
		"NoError":          {reason: "the pod is bound", err: nil},
		"OtherError":       {reason: "the request did not reach the API server", err: errors.New("connection refused")},
		"Wrapped":          {reason: "schedulers add context to errors", err: fmt.Errorf("binding pod: %w", waiting), want: Waiting},
		"Throttled":        {reason: "the API server has too many requests, and Prebind has not seen this one", err: throttled},
		"OtherWebhook":     {reason: "another webhook denied the Binding", err: webhookDenial("other.example.com")},
		"SimilarName":      {reason: "another webhook has a longer name", err: webhookDenial("x." + WebhookName)},
		"PrebindNotCalled": {reason: "no replica answers", err: apierrors.NewInternalError(errors.New(`failed calling webhook "` + WebhookName + `": timeout`))},
		"NoDetails":        {reason: "the kind depends on the code only", err: &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusForbidden, Message: deniedBy + "x"}}, want: Refused},
		"UnknownCode":      {reason: "a later version of Prebind has another code", err: unknown, want: Internal},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tc.want, Classify(tc.err).Kind, tc.reason)
		})
	}
}

func webhookDenial(name string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: fmt.Sprintf("admission webhook %q denied the request: no", name),
	}}
}
