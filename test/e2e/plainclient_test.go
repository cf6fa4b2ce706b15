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

	// The client does not wait longer than the API server. Prebind must answer earlier.
	response, status := b.postBinding(b.binding("node-1"), 6*time.Second)
	assert.Equal(t, http.StatusTooManyRequests, response.StatusCode)
	require.NotNil(t, status.Details, "%v", status)
	assert.Positive(t, status.Details.RetryAfterSeconds)
	assert.Equal(t, fmt.Sprint(status.Details.RetryAfterSeconds), response.Header.Get("Retry-After"))
	assert.NotEmpty(t, response.Header.Get(flowcontrolv1.ResponseHeaderMatchedFlowSchemaUID), "the header does not distinguish a 429 of Prebind")
	b.assertDenied(status, metav1.StatusReasonTooManyRequests, "volumebinding", "PersistentVolumeClaim "+b.ns+"/data")

	response, status = b.postBinding(b.binding("node-2"), 30*time.Second)
	assert.Equal(t, http.StatusForbidden, response.StatusCode)
	assert.Empty(t, response.Header.Get("Retry-After"))
	b.assertDenied(status, metav1.StatusReasonForbidden, "volumebinding", "PersistentVolumeClaim "+b.ns+"/data")

	response, status = b.postBinding(b.binding("node-1", gen.UID("0")), 30*time.Second)
	assert.Equal(t, http.StatusPreconditionFailed, response.StatusCode)
	b.assertDenied(status, webhook.ReasonStale, "binder", "Pod "+b.ns+"/pod")

	response, status = b.postBinding(b.binding("node-1", gen.Annotation("device.prebind.dev/gpu", "a,a")), 30*time.Second)
	assert.Equal(t, http.StatusUnprocessableEntity, response.StatusCode)
	b.assertDenied(status, metav1.StatusReasonInvalid, "device", "Binding "+b.ns+"/pod")
	assert.Equal(t, metav1.StatusCause{Type: webhook.CauseField, Field: "metadata.annotations[device.prebind.dev/gpu]", Message: `device "a" is listed twice`},
		status.Details.Causes[2])

	other := b.binding("node-1", gen.Annotation("device.prebind.dev/gpu", b.ns))
	other.Name = "other"
	_, err := b.createPod(other.Name, byHand)
	require.NoError(t, err)
	response, status = b.postBinding(other, 30*time.Second)
	assert.Equal(t, http.StatusCreated, response.StatusCode, "%v", status)
	response, _ = b.postBinding(other, 30*time.Second)
	assert.Equal(t, http.StatusConflict, response.StatusCode, "the pod is bound")
}

// postBinding posts the Binding over plain HTTP. The timeout applies to the API server and to the client.
func (b *bench) postBinding(binding *corev1.Binding, timeout time.Duration) (*http.Response, metav1.Status) {
	b.t.Helper()
	config := b.cluster.Config()
	client, err := rest.HTTPClientFor(config)
	require.NoError(b.t, err)
	body, err := json.Marshal(binding)
	require.NoError(b.t, err)
	ctx, cancel := context.WithTimeout(b.t.Context(), timeout)
	defer cancel()
	url := fmt.Sprintf("%s/api/v1/namespaces/%s/pods/%s/binding?timeout=%s", config.Host, b.ns, binding.Name, timeout)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	require.NoError(b.t, err)
	request.Header.Set("Content-Type", "application/json")
	response, err := client.Do(request)
	require.NoError(b.t, err)
	defer response.Body.Close()
	var status metav1.Status
	require.NoError(b.t, json.NewDecoder(response.Body).Decode(&status))
	return response, status
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
