// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/volume"

	"github.com/prebind/prebind/test/gen"
	"github.com/prebind/prebind/webhook"
)

// Responses to a scheduler through the real API server.
func TestRefusals(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		reason string
		// prepare creates the pod "pod" and its objects.
		prepare func(b *bench)
		node    string
		options []gen.BindingOption
		// is checks the status of the API server's own response.
		is   func(error) bool
		says []string
		// decided is the decision of Prebind.
		decided string
		// mayWait means that Prebind may first let the client repeat the bind.
		mayWait bool
	}{
		"unknown node": {
			reason:  "the API server would bind the pod to it, where it never runs",
			prepare: func(b *bench) { b.pod(byHand) },
			node:    "node-none",
			is:      apierrors.IsForbidden,
			says:    []string{"Node node-none: not found", "choose another node"},
			decided: "refused",
		},
		"missing pod": {
			reason:  "a pod that is created a moment later must not be bound unchecked",
			prepare: func(*bench) {},
			node:    "node-1",
			is:      apierrors.IsNotFound,
			says:    []string{"binder: Pod", "not found; discard the Binding"},
			decided: "stale",
		},
		"empty target": {
			reason:  "the API server's own answer is the right one",
			prepare: func(b *bench) { b.pod(byHand) },
			node:    "",
			says:    []string{"target.name: Required value"},
			decided: "passed-through",
		},
		"target that is not a node": {
			reason:  "the API server's own answer is the right one",
			prepare: func(b *bench) { b.pod(byHand) },
			node:    "node-1",
			options: []gen.BindingOption{gen.TargetKind("Minion")},
			says:    []string{"target.kind: Unsupported value"},
			decided: "passed-through",
		},
		"UID of another pod": {
			reason:  "the API server's own answer is the right one",
			prepare: func(b *bench) { b.pod(byHand) },
			node:    "node-1",
			options: []gen.BindingOption{gen.UID("0")},
			is:      apierrors.IsConflict,
			says:    []string{"Precondition failed: UID in precondition: 0"},
			decided: "passed-through",
		},
		"gated pod": {
			reason:  "the API server's own answer is the right one",
			prepare: func(b *bench) { b.podWith(byHand, gen.Gate("example.com/quota")) },
			node:    "node-1",
			is:      apierrors.IsConflict,
			says:    []string{"has non-empty .spec.schedulingGates"},
			decided: "passed-through",
		},
		"gated pod, in a later version": {
			reason:  "the API server must not bind it once its gate is removed",
			prepare: func(b *bench) { b.podWith(byHand, gen.Gate("example.com/quota")) },
			node:    "node-1",
			options: []gen.BindingOption{gen.AtVersion("999999999")},
			is:      apierrors.IsConflict,
			says:    []string{"has non-empty .spec.schedulingGates"},
			decided: "passed-through",
		},
		"terminating pod": {
			reason: "the API server's own answer is the right one",
			prepare: func(b *bench) {
				b.podWith(byHand, keptByTest())
				b.deletePod()
			},
			node:    "node-1",
			is:      apierrors.IsConflict,
			says:    []string{"is being deleted"},
			decided: "passed-through",
		},
		"outdated resourceVersion": {
			reason:  "the decision was about a pod that has changed",
			prepare: func(b *bench) { b.pod(byHand) },
			node:    "node-1",
			options: []gen.BindingOption{gen.AtVersion("1")},
			is:      isStale,
			says:    []string{"the Binding requires 1; schedule the changed pod"},
			decided: "stale",
		},
		"name that no node has": {
			reason:  "the API server would bind the pod to it, where it never runs",
			prepare: func(b *bench) { b.pod(byHand) },
			node:    "node-1/status",
			is:      apierrors.IsForbidden,
			says:    []string{"Node node-1/status: invalid name", "choose another node"},
			decided: "refused",
		},
		"bad annotation": {
			reason:  "the API server would store it, and refuse every later update of the pod",
			prepare: func(b *bench) { b.pod(byHand) },
			node:    "node-1",
			options: []gen.BindingOption{gen.Annotation("bad key", "x")},
			is:      apierrors.IsInvalid,
			says:    []string{"bad key", "rejects every update of a pod"},
			decided: "invalid",
		},
		"missing claim": {
			reason:  "the pod could never start",
			prepare: func(b *bench) { b.pod(byHand, "data") },
			node:    "node-1",
			is:      apierrors.IsForbidden,
			says:    []string{"volumebinding", "PersistentVolumeClaim", "/data", "does not exist"},
			decided: "refused",
		},
		"volume of another node": {
			reason: "the pod could never mount it",
			prepare: func(b *bench) {
				class, _ := b.static("node-2", "1Gi")
				b.claim("data", class)
				b.pod(byHand, "data")
			},
			node:    "node-1",
			is:      apierrors.IsForbidden,
			says:    []string{"volumebinding", "/data", "node-1", "does not provision"},
			decided: "refused",
			// Prebind first checks that its cache is current. Checks for binds of other tests can delay this one.
			mayWait: true,
		},
		"volume being provisioned on another node": {
			reason: "it would be reachable from there only",
			prepare: func(b *bench) {
				b.claim("data", b.dynamic("10m"))
				_, err := b.client.CoreV1().PersistentVolumeClaims(b.ns).Patch(b.t.Context(), "data", types.MergePatchType,
					[]byte(`{"metadata":{"annotations":{"`+volume.AnnSelectedNode+`":"node-2"}}}`), metav1.PatchOptions{})
				require.NoError(b.t, err)
				b.pod(byHand, "data")
			},
			node:    "node-1",
			is:      apierrors.IsForbidden,
			says:    []string{"being provisioned on node node-2", "bind the pod to node-2"},
			decided: "refused",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, shared, nil)
			tc.prepare(b)
			err := b.bindByHand(b.binding(tc.node, tc.options...))
			require.Error(t, err, tc.reason)
			if tc.decided != "passed-through" {
				assert.False(t, repeatedByScheduler(err) || apierrors.IsConflict(err), "no scheduler should repeat the bind: %v", err)
			}
			if tc.is != nil {
				assert.True(t, tc.is(err), "%s: %v (%s)", tc.reason, err, apierrors.ReasonForError(err))
			}
			for _, words := range tc.says {
				assert.ErrorContains(t, err, words)
			}
			decisions := b.decisions()
			if tc.mayWait {
				decisions = slices.DeleteFunc(decisions, func(d string) bool { return d == "waiting" })
			}
			assert.Equal(t, []string{tc.decided}, decisions)
		})
	}
}

// The API server rejects a Binding whose pod differs from the URL, before Prebind changes any object.
func TestNameInURLDiffers(t *testing.T) {
	t.Parallel()
	b := newBench(t, shared, nil)
	b.claim("data", b.dynamic("0s"))
	b.pod(byHand, "data")
	binding := b.binding("node-1")
	binding.Name = "other"
	err := b.client.CoreV1().RESTClient().Post().Namespace(b.ns).Resource("pods").Name("pod").SubResource("binding").Body(binding).Do(t.Context()).Error()
	assert.True(t, apierrors.IsBadRequest(err), "%v", err)
	assert.ErrorContains(t, err, "name in URL does not match")
	assert.Equal(t, []string{"passed-through"}, b.decisions())
	assert.Empty(t, b.events())
}

// Responses of the real process to any client that reaches its port.
func TestBadRequests(t *testing.T) {
	t.Parallel()
	const review = `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"1",` +
		`"kind":{"group":"","version":"v1","kind":"Binding"},"resource":{"group":"","version":"v1","resource":"pods"},"subResource":"binding",` +
		`"namespace":"default","name":"none","operation":"CREATE","object":{"kind":"Binding","apiVersion":"v1","metadata":{"name":"none"},"target":{"kind":"Node","name":"node-0"}}}}`
	tests := map[string]struct {
		body string
		code int
		says string
	}{
		"a review of a missing pod": {body: review, code: http.StatusOK, says: `"code":404`},
		"nothing":                   {body: "", code: http.StatusBadRequest, says: "not a valid AdmissionReview"},
		"malformed":                 {body: "{]", code: http.StatusBadRequest, says: "not a valid AdmissionReview"},
		"truncated":                 {body: review[:len(review)/2], code: http.StatusBadRequest, says: "not a valid AdmissionReview"},
		"without a request":         {body: `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1"}`, code: http.StatusBadRequest, says: "no request"},
		"another kind":              {body: strings.Replace(review, "AdmissionReview", "Pod", 1), code: http.StatusBadRequest, says: "not an AdmissionReview"},
		"another version":           {body: strings.Replace(review, "admission.k8s.io/v1", "admission.k8s.io/v1beta1", 1), code: http.StatusBadRequest, says: "not an AdmissionReview"},
		"another resource":          {body: strings.Replace(review, `"subResource":"binding"`, `"subResource":"status"`, 1), code: http.StatusOK, says: "must match only CREATE of pods/binding"},
		"a Binding that is none":    {body: strings.Replace(review, `"target":{`, `"target":7,"x":{`, 1), code: http.StatusOK, says: `"code":422`},
		"larger than any Binding":   {body: strings.Repeat(" ", 9<<20), code: http.StatusRequestEntityTooLarge, says: "larger than"},
	}
	replica := shared.prebind.Replicas()[0]
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
				"https://"+replica.WebhookAddress()+webhook.Path+"?timeout=5s", bytes.NewReader([]byte(tc.body)))
			require.NoError(t, err)
			request.Header.Set("Content-Type", "application/json")
			response, err := insecure.Do(request)
			require.NoError(t, err)
			defer response.Body.Close()
			body, err := io.ReadAll(response.Body)
			require.NoError(t, err)
			assert.Equal(t, tc.code, response.StatusCode, "%s", body)
			assert.True(t, json.Valid(body), "%s", body)
			assert.Contains(t, string(body), tc.says)
		})
	}
	require.NoError(t, replica.Err(), "the process should still run")
}
