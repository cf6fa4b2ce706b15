// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// canary is the name of an object that every hook refuses. A refusal shows that the API server calls the hook.
const canary = "canary"

// judgement decides on one request. An error refuses it. The context ends when the API server closes the connection.
type judgement func(context.Context, *admissionv1.AdmissionRequest) error

// newHook registers a validating webhook of the test. knock must send a dry run that matches the rules, for an object with the
// name canary.
func newHook(t *testing.T, w *world, rules []admissionregistrationv1.RuleWithOperations, judge judgement, knock func() error) {
	t.Helper()
	server := httptest.NewTLSServer(hookHandler(t, judge))
	t.Cleanup(server.Close)
	config := &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-"},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "hook.e2e.prebind.dev",
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				URL:      new(server.URL),
				CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
			},
			Rules:                   rules,
			FailurePolicy:           new(admissionregistrationv1.Fail),
			SideEffects:             new(admissionregistrationv1.SideEffectClassNoneOnDryRun),
			TimeoutSeconds:          new(int32(30)),
			AdmissionReviewVersions: []string{"v1"},
		}},
	}
	config, err := w.client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(), config, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = w.client.AdmissionregistrationV1().ValidatingWebhookConfigurations().
			Delete(context.WithoutCancel(t.Context()), config.Name, metav1.DeleteOptions{})
	})
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		assert.ErrorContains(c, knock(), canary)
	}, patience, 100*time.Millisecond, "the API server should ask the hook")
}

func hookHandler(t *testing.T, judge judgement) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Request == nil {
			http.Error(w, "no AdmissionReview", http.StatusBadRequest)
			return
		}
		err := errors.New("it is the " + canary)
		if review.Request.Name != canary {
			err = judge(r.Context(), review.Request)
		}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: err == nil}
		if err != nil {
			review.Response.Result = &metav1.Status{Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: err.Error()}
		}
		if err := json.NewEncoder(w).Encode(review); err != nil {
			t.Logf("the response of the hook did not reach the API server: %v", err)
		}
	})
}

// on returns a rule for the operations on the resources of the core group.
func on(operations []admissionregistrationv1.OperationType, resources ...string) []admissionregistrationv1.RuleWithOperations {
	return []admissionregistrationv1.RuleWithOperations{{
		Operations: operations,
		Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: resources},
	}}
}
