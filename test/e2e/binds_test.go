// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/component-helpers/storage/volume"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
	"github.com/prebind/prebind/webhook"
)

// byHand is a scheduler that does not support volumes. It only posts a Binding.
const byHand = "by-hand"

// binders lists the ways in which a pod can be bound. None of them is modified for Prebind.
var binders = map[string]struct {
	scheduler string
	// volumesByPrebind means that only Prebind binds volumes.
	volumesByPrebind bool
}{
	"kube-scheduler": {scheduler: cluster.DefaultScheduler},
	"kube-scheduler with VolumeBinding's PreBind off": {scheduler: cluster.NoPreBindScheduler, volumesByPrebind: true},
	"a client that just posts a Binding":              {scheduler: byHand, volumesByPrebind: true},
}

// bind creates the pod with the claims. The scheduler binds it, or the test binds it to the node by hand. bind returns the bound
// pod.
func (b *bench) bind(scheduler, node string, claims ...string) *corev1.Pod {
	b.t.Helper()
	b.pod(scheduler, claims...)
	if scheduler == byHand {
		require.NoError(b.t, b.bindByHand(b.binding(node)))
	}
	pod := b.untilBound()
	b.assertTopology(pod)
	b.assertNeverFailed()
	return pod
}

// A pod with a volume that is provisioned and a volume of its node is bound by every scheduler.
func TestBind(t *testing.T) {
	t.Parallel()
	for name, by := range binders {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, shared, nil)
			local, _ := b.static("node-5", "1Gi")
			b.claim("local", local)
			b.claim("made", b.dynamic("5s"))
			pod := b.bind(by.scheduler, "node-5", "local", "made")
			b.assertClaimBound("local", pod.Spec.NodeName)
			claim := b.assertClaimBound("made", pod.Spec.NodeName)
			assert.Equal(t, pod.Spec.NodeName, claim.Annotations[volume.AnnSelectedNode])

			said := b.decisions()
			assert.Equal(t, "allowed", said[len(said)-1])
			if !by.volumesByPrebind {
				assert.Len(t, said, 1, "kube-scheduler completes the preparation before it posts the Binding")
			}
		})
	}
}

// If provisioning takes longer than a call, kube-scheduler repeats the call until the volume exists, and reports no error.
func TestSlowProvisioning(t *testing.T) {
	t.Parallel()
	b := newBench(t, shared, nil)
	b.claim("data", b.dynamic("35s"))
	pod := b.bind(cluster.NoPreBindScheduler, "", "data")
	b.assertClaimBound("data", pod.Spec.NodeName)
	said := b.decisions()
	assert.Greater(t, len(said), 1, "no call should be held for 35 s")
	assert.Equal(t, "waiting", said[0])
	assert.LessOrEqual(t, len(said), 11, "client-go should repeat a call at most ten times")
}

// A controller creates the claim of a generic ephemeral volume after the pod. The bind of a faster scheduler waits.
func TestEphemeralVolume(t *testing.T) {
	t.Parallel()
	b := newBench(t, shared, nil)
	b.podWith(byHand, gen.EphemeralVolume("scratch", gen.OfClass(b.dynamic("1s"))))
	require.NoError(t, b.bindByHand(b.binding("node-3")))
	b.assertTopology(b.untilBound())
	b.assertClaimBound("pod-scratch", "node-3")
}

// The older API to bind a pod, which a webhook rule for only pods/binding does not match.
func TestBindByLegacyPath(t *testing.T) {
	t.Parallel()
	b := newBench(t, shared, nil)
	b.claim("data", b.dynamic("1s"))
	b.pod(byHand, "data")
	require.NoError(t, b.client.CoreV1().RESTClient().Post().Namespace(b.ns).Resource("bindings").Body(b.binding("node-6")).Do(t.Context()).Error())
	pod := b.untilBound()
	b.assertTopology(pod)
	b.assertClaimBound("data", "node-6")
}

func TestDryRunChangesNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t, shared, nil)
	local, volumes := b.static("node-3", "1Gi")
	b.claim("local", local)
	b.claim("made", b.dynamic("1s"))
	b.pod(byHand, "local", "made")
	before := b.versions(volumes[0], "local", "made")

	client, warned := b.listeningClient()
	require.NoError(t, client.CoreV1().Pods(b.ns).Bind(t.Context(), b.binding("node-3"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}))
	assert.Equal(t, before, b.versions(volumes[0], "local", "made"))
	assert.Equal(t, []string{"allowed"}, b.decisions())
	warnings := strings.Split(warned.String(), "\n")
	require.Len(t, warnings, 3, "the dry run should report the changes of each claim")
	assert.Contains(t, warnings[0], volumes[0])
	assert.Contains(t, warnings[1], b.ns+"/made")

	// Post the same Binding without dry run.
	require.NoError(t, b.bindByHand(b.binding("node-3")))
	b.assertClaimBound("local", "node-3")
	b.assertClaimBound("made", "node-3")
}

// The API server stores invalid metadata of a Binding, and then rejects every update of that pod, including updates of the kubelet.
// Prebind denies such a Binding. Here, pod and Binding together have too many annotations.
func TestMetadataThatNoPodSurvives(t *testing.T) {
	t.Parallel()
	b := newBench(t, shared, nil)
	kib := func(n int) string { return strings.Repeat("x", n<<10) }
	created := b.podWith(byHand, gen.Annotation("example.com/pods", kib(200)))
	for size, says := range map[int][]string{
		100:  {"invalid metadata after the merge", "metadata.annotations", "Too long", "262144"},
		2200: {"its AdmissionReview is too large"}, // The API server accepts 3 MiB.
	} {
		err := b.bindByHand(b.binding("node-1", gen.Annotation("example.com/blob", kib(size))))
		require.True(t, apierrors.IsInvalid(err), "the Binding should be rejected as invalid: %v", err)
		for _, words := range says {
			assert.ErrorContains(t, err, words)
		}
	}
	assert.Equal(t, []string{"invalid", "invalid"}, b.decisions())
	assert.Equal(t, created.ResourceVersion, b.assertNotBound().ResourceVersion, "the API server should not store the metadata")

	require.NoError(t, b.bindByHand(b.binding("node-1")), "without it")
	b.assertTopology(b.untilBound())
	assert.NoError(t, b.patchStatus("pod"))
}

// patchStatus reports the pod as ready, like its kubelet.
func (b *bench) patchStatus(name string) error {
	return b.patch(name, `{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}`)
}

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
