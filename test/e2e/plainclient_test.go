// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/prebind/prebind/test/gen"
	"github.com/prebind/prebind/webhook"
)

// Answers as a client without client-go receives them: docs/for-schedulers.md promises their parts. The tests of the module client
// assume the prefix of the message.
func TestPlainClient(t *testing.T) {
	t.Parallel()
	b := newBench(t, shared, nil)
	b.claim("data", b.dynamic("10m"))
	b.pod(byHand, "data")

	got := b.postWaiting(b.binding("node-1"))
	assert.Equal(t, http.StatusTooManyRequests, got.code)
	require.NotNil(t, got.status.Details, "%v", got.status)
	assert.Positive(t, got.status.Details.RetryAfterSeconds)
	assert.Equal(t, fmt.Sprint(got.status.Details.RetryAfterSeconds), got.header.Get("Retry-After"))
	assert.NotEmpty(t, got.header.Get(flowcontrolv1.ResponseHeaderMatchedFlowSchemaUID), "the header does not distinguish a 429 of Prebind")
	b.assertDenied(got.status, metav1.StatusReasonTooManyRequests, "volumebinding", "PersistentVolumeClaim "+b.ns+"/data")

	got = b.postBinding(b.binding("node-2"), 30*time.Second)
	assert.Equal(t, http.StatusForbidden, got.code)
	assert.Empty(t, got.header.Get("Retry-After"))
	b.assertDenied(got.status, metav1.StatusReasonForbidden, "volumebinding", "PersistentVolumeClaim "+b.ns+"/data")

	got = b.postBinding(b.binding("node-1", gen.AtVersion("1")), 30*time.Second)
	assert.Equal(t, http.StatusPreconditionFailed, got.code)
	b.assertDenied(got.status, webhook.ReasonStale, "binder", "Pod "+b.ns+"/pod")

	got = b.postBinding(b.binding("node-1", gen.Annotation("device.prebind.dev/gpu", "a,a")), 30*time.Second)
	assert.Equal(t, http.StatusUnprocessableEntity, got.code)
	b.assertDenied(got.status, metav1.StatusReasonInvalid, "device", "Binding "+b.ns+"/pod")
	assert.Equal(t, metav1.StatusCause{Type: webhook.CauseField, Field: "metadata.annotations[device.prebind.dev/gpu]", Message: `device "a" is listed twice`},
		got.status.Details.Causes[2])

	other := b.binding("node-1", gen.Annotation("device.prebind.dev/gpu", b.ns))
	other.Name = "other"
	_, err := b.createPod(other.Name, byHand)
	require.NoError(t, err)
	got = b.postBinding(other, 30*time.Second)
	assert.Equal(t, http.StatusCreated, got.code, "%v", got.status)
	got = b.postBinding(other, 30*time.Second)
	// Prebind answers itself if its cache did not have the bound pod yet.
	assert.Contains(t, []int{http.StatusConflict, http.StatusPreconditionFailed}, got.code, "the pod is bound: %v", got.status)
}

// plainAnswer is a response of the API server.
type plainAnswer struct {
	code   int
	header http.Header
	status metav1.Status
}

// postBinding posts the Binding over plain HTTP. The timeout is that of the API server, which answers 504 after it.
func (b *bench) postBinding(binding *corev1.Binding, timeout time.Duration) plainAnswer {
	b.t.Helper()
	config := b.cluster.Config()
	client, err := rest.HTTPClientFor(config)
	require.NoError(b.t, err)
	body, err := json.Marshal(binding)
	require.NoError(b.t, err)
	ctx, cancel := context.WithTimeout(b.t.Context(), timeout+patience)
	defer cancel()
	url := fmt.Sprintf("%s/api/v1/namespaces/%s/pods/%s/binding?timeout=%s", config.Host, b.ns, binding.Name, timeout)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	require.NoError(b.t, err)
	request.Header.Set("Content-Type", "application/json")
	response, err := client.Do(request)
	require.NoError(b.t, err)
	defer response.Body.Close()
	got := plainAnswer{code: response.StatusCode, header: response.Header}
	require.NoError(b.t, json.NewDecoder(response.Body).Decode(&got.status))
	return got
}

// postWaiting posts the Binding of a pod that waits, with a short timeout. Prebind must answer before the API server does. On a busy
// machine, the API server sometimes answers first, so postWaiting repeats such a call.
func (b *bench) postWaiting(binding *corev1.Binding) plainAnswer {
	b.t.Helper()
	got := b.postBinding(binding, 6*time.Second)
	for began := time.Now(); got.code == http.StatusGatewayTimeout && time.Since(began) < patience; {
		got = b.postBinding(binding, 6*time.Second)
	}
	return got
}

// assertDenied checks a denial of Prebind.
func (b *bench) assertDenied(status metav1.Status, reason metav1.StatusReason, plugin, object string) {
	b.t.Helper()
	assert.Equal(b.t, reason, status.Reason)
	assert.Regexp(b.t, `^admission webhook "`+webhook.Name+`" denied the request: `+plugin+`: `+object+`: `, status.Message)
	require.NotNil(b.t, status.Details)
	require.GreaterOrEqual(b.t, len(status.Details.Causes), 2)
	assert.Equal(b.t, []metav1.StatusCause{{Type: webhook.CausePlugin, Message: plugin}, {Type: webhook.CauseObject, Message: object}}, status.Details.Causes[:2])
}
