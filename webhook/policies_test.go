// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/prebind/prebind/internal/policy"
	"github.com/prebind/prebind/policy/v1alpha1"
	"github.com/prebind/prebind/test/fakeapi"
)

// compiler compiles without a cluster.
type compiler struct{}

func (compiler) Compile(_ context.Context, b *v1alpha1.BindPolicy) (*policy.Compiled, error) {
	return policy.Compile(b, policy.Options{BindTimeout: 10 * time.Minute})
}

// policyOf returns a policy with the spec.
func policyOf(t *testing.T, spec string) *v1alpha1.BindPolicy {
	t.Helper()
	b := &v1alpha1.BindPolicy{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	require.NoError(t, yaml.UnmarshalStrict([]byte(spec), &b.Spec))
	return b
}

// admit returns the answer of the webhook to the change of a policy. A nil old policy means a creation.
func admit(t *testing.T, b, old *v1alpha1.BindPolicy) *admissionv1.AdmissionResponse {
	t.Helper()
	raw := func(o *v1alpha1.BindPolicy) runtime.RawExtension {
		content, err := json.Marshal(o)
		require.NoError(t, err)
		return runtime.RawExtension{Raw: content}
	}
	review := &admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Request:  &admissionv1.AdmissionRequest{UID: "u", Operation: admissionv1.Create, Object: raw(b)},
	}
	if old != nil {
		review.Request.Operation, review.Request.OldObject = admissionv1.Update, raw(old)
	}
	body, err := json.Marshal(review)
	require.NoError(t, err)
	answer := &admissionv1.AdmissionReview{}
	require.NoError(t, json.Unmarshal(serve(t, NewPolicyHandler(compiler{}), body).Body.Bytes(), answer))
	require.NotNil(t, answer.Response)
	return answer.Response
}

// TestPolicyHandler_Busy checks that no call waits: calls of anybody could keep all connections from the API server.
func TestPolicyHandler_Busy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		body := []byte(reviewPrefix + `"uid":"u","operation":"CREATE","object":{"apiVersion":"policy.prebind.dev/v1alpha1","kind":"BindPolicy"}}}`)
		release := make(chan struct{})
		h := NewPolicyHandler(compilerFunc(func() { <-release }))
		var calls sync.WaitGroup
		for range maxPolicies {
			calls.Go(func() { assert.Contains(t, serve(t, h, body).Body.String(), `"allowed":true`) })
		}
		synctest.Wait()
		w := serve(t, h, body)
		checkStatus(t, w, http.StatusServiceUnavailable, "other BindPolicies are being compiled")
		assert.NotEmpty(t, w.Header().Get("Retry-After"), "the API server repeats the call")
		close(release)
		calls.Wait()
	})
}

// compilerFunc compiles every policy to an empty one after a call of the function.
type compilerFunc func()

func (f compilerFunc) Compile(context.Context, *v1alpha1.BindPolicy) (*policy.Compiled, error) {
	f()
	return &policy.Compiled{}, nil
}

func TestPolicyHandler(t *testing.T) {
	good := policyOf(t, "validations: [{expression: 'true'}]")
	broken := policyOf(t, "validations: [{expression: 'true'}, {expression: pod.spec.nodename == ''}, {expression: nodes}]")
	assert.True(t, admit(t, good, nil).Allowed)
	for name, old := range map[string]*v1alpha1.BindPolicy{"create": nil, "update": good} {
		t.Run(name, func(t *testing.T) {
			response := admit(t, broken, old)
			require.False(t, response.Allowed)
			assert.Equal(t, `BindPolicy.policy.prebind.dev "a" is invalid: [spec.validations[1].expression: Invalid value: line 1, column 9: undefined field 'nodename', `+
				`spec.validations[2].expression: Invalid value: line 1, column 1: undeclared reference to 'nodes']`, response.Result.Message)
			assert.Equal(t, metav1.StatusReasonInvalid, response.Result.Reason)
			require.Len(t, response.Result.Details.Causes, 2)
			assert.Equal(t, "spec.validations[2].expression", response.Result.Details.Causes[1].Field)
		})
	}
	labeled := broken.DeepCopy()
	labeled.Labels = map[string]string{"a": "b"}
	assert.True(t, admit(t, labeled, broken).Allowed, "a policy that entered without the webhook can still get labels")
	stopped := broken.DeepCopy()
	stopped.Spec.Mode = v1alpha1.ModeAudit
	assert.True(t, admit(t, stopped, broken).Allowed, "nor does it have to compile to be stopped")
	assert.False(t, admit(t, broken, stopped).Allowed, "but it does to be enforced again")
	assert.False(t, admit(t, stopped, good).Allowed, "and if anything else changes")
	long := policyOf(t, "waitFor: [{name: a, expression: 'true', timeout: 1h}]")
	assert.Equal(t, []string{"spec.waitFor[0].timeout: 1h0m0s is longer than the timeout of a bind, 10m0s (--prebind-timeout), which ends the wait"}, admit(t, long, nil).Warnings)
}

// The leader copies the CA bundle, however it got into the webhook configuration for Bindings.
func TestTrust(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bindings := &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "bindings"}, Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name: "pods-binding.prebind.dev", ClientConfig: admissionregistrationv1.WebhookClientConfig{CABundle: []byte("ca")},
		}}}
		policies := &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: policyWebhooks}, Webhooks: []admissionregistrationv1.ValidatingWebhook{{Name: "bindpolicies.prebind.dev"}}}
		server := fakeapi.New(bindings)
		api, leads := server.Connect(), atomic.Bool{}
		ctx, cancel := context.WithCancel(t.Context())
		var done sync.WaitGroup
		done.Go(func() { (&Trust{Reader: api, Writer: api, Leads: leads.Load, From: "bindings"}).Run(ctx) })
		defer func() { cancel(); done.Wait() }()
		elapse := func(d time.Duration) {
			<-time.After(d)
			synctest.Wait()
		}
		bundle := func() string {
			stored, ok := fakeapi.Get(server, policies)
			require.True(t, ok)
			return string(stored.Webhooks[0].ClientConfig.CABundle)
		}
		elapse(trustInterval)
		server.Put(policies)
		elapse(trustInterval)
		assert.Empty(t, bundle(), "only the leader writes")
		leads.Store(true)
		elapse(trustInterval)
		assert.Equal(t, "ca", bundle())
		fakeapi.Change(server, bindings, "someone", func(c *admissionregistrationv1.MutatingWebhookConfiguration) {
			c.Webhooks[0].ClientConfig.CABundle = []byte("next")
		})
		elapse(trustInterval)
		assert.Equal(t, "next", bundle())
		fakeapi.Change(server, bindings, "someone", func(c *admissionregistrationv1.MutatingWebhookConfiguration) {
			c.Webhooks[0].ClientConfig.CABundle = nil
		})
		elapse(trustInterval)
		assert.Equal(t, "next", bundle(), "after break glass, the manifests are applied before the bundle is known")
		writes := len(server.Writes())
		elapse(time.Minute)
		assert.Len(t, server.Writes(), writes)
	})
}
