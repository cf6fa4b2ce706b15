// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
	"github.com/prebind/prebind/test/install"
	"github.com/prebind/prebind/webhook"
)

// driver is a label that a node gets later, for example when an operator installs a driver.
const driver = "gpu.example.com/driver"

// expectsDriver requires the version of installDriver.
func expectsDriver() gen.Meta {
	return gen.Annotation("node-state.prebind.dev/expect", driver+"=550")
}

func waits(long string) gen.Meta { return gen.Annotation("node-state.prebind.dev/wait", long) }

// patchNode merges the patch into the node.
func (b *bench) patchNode(node, patch string, subresources ...string) {
	b.t.Helper()
	_, err := b.client.CoreV1().Nodes().Patch(b.t.Context(), node, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, subresources...)
	require.NoError(b.t, err)
}

// installDriver gives the node the label driver.
func (b *bench) installDriver(node string) {
	b.t.Helper()
	b.patchNode(node, `{"metadata":{"labels":{"`+driver+`":"550"}}}`)
}

// report sets a condition of the node, like its kubelet.
func (b *bench) report(node, condition, status, reason string) {
	b.t.Helper()
	b.patchNode(node, `{"status":{"conditions":[{"type":"`+condition+`","status":"`+status+`","reason":"`+reason+`"}]}}`, "status")
}

// taint adds a taint and keeps the existing ones.
func (b *bench) taint(node, key string, effect corev1.TaintEffect) {
	b.t.Helper()
	b.kubectl("taint", "node", node, key+":"+string(effect))
}

func (b *bench) kubectl(args ...string) {
	b.t.Helper()
	out, err := b.cluster.Kubectl(b.t.Context(), args...).CombinedOutput()
	require.NoError(b.t, err, "kubectl %v: %s", args, out)
}

// untilHeard waits until every replica has observed the change of the node. A replica with an outdated cache would allow the bind,
// because Prebind reads a live node only before a rejection.
func (b *bench) untilHeard(binding *corev1.Binding) {
	b.t.Helper()
	b.untilAnswered(binding, func(a *admissionv1.AdmissionResponse) bool { return !a.Allowed || len(a.Warnings) > 0 })
}

// untilDenied waits until every replica would reject the bind.
func (b *bench) untilDenied(binding *corev1.Binding) {
	b.t.Helper()
	b.untilAnswered(binding, func(a *admissionv1.AdmissionResponse) bool { return !a.Allowed })
}

// untilAnswered waits until every replica gives such an answer to a dry run of the Binding.
func (b *bench) untilAnswered(binding *corev1.Binding, is func(*admissionv1.AdmissionResponse) bool) {
	b.t.Helper()
	review := b.dryRunOf(binding)
	for _, r := range b.prebind.Replicas() {
		require.EventuallyWithT(b.t, func(c *assert.CollectT) {
			answer, err := ask(b.t.Context(), r, review)
			require.NoError(c, err)
			assert.True(c, is(answer))
		}, patience, 50*time.Millisecond, "%s should hear of it", r.Name())
	}
}

// dryRunOf returns the review of a dry run of the Binding.
func (b *bench) dryRunOf(binding *corev1.Binding) []byte {
	b.t.Helper()
	object, err := json.Marshal(binding)
	require.NoError(b.t, err)
	review, err := json.Marshal(&admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{
			UID: "1", Kind: metav1.GroupVersionKind{Version: "v1", Kind: "Binding"},
			Resource: metav1.GroupVersionResource{Version: "v1", Resource: "pods"}, SubResource: "binding",
			Namespace: b.ns, Name: binding.Name, Operation: admissionv1.Create, DryRun: new(true), Object: runtime.RawExtension{Raw: object},
		},
	})
	require.NoError(b.t, err)
	return review
}

var insecure = &http.Client{Transport: &http.Transport{
	TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, // Any client that can reach the port.
}}

// ask posts the review directly to the replica.
func ask(ctx context.Context, r *install.Replica, review []byte) (*admissionv1.AdmissionResponse, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+r.WebhookAddress()+webhook.Path+"?timeout=5s", bytes.NewReader(review))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := insecure.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	var answer admissionv1.AdmissionReview
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return nil, err
	}
	if answer.Response == nil {
		return nil, fmt.Errorf("%s returned %s", r.Name(), response.Status)
	}
	return answer.Response, nil
}

// assertRefused checks that the bind was rejected with all of the words, and that an event of the pod contains them.
func (b *bench) assertRefused(err error, words ...string) {
	b.t.Helper()
	assert.True(b.t, apierrors.IsForbidden(err), "the request should be refused: %v (%s)", err, apierrors.ReasonForError(err))
	for _, w := range words {
		assert.ErrorContains(b.t, err, w)
	}
	b.untilEvent(append([]string{"BindRefused"}, words...)...)
	assert.Empty(b.t, b.until("still unbound", notBound).Spec.NodeName)
}

// A node changes between the scheduler's decision and the bind.
func TestNodeChangesBeforeBind(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		reason string
		// change changes the node after the scheduling decision.
		change  func(b *bench, node string)
		binding []gen.BindingOption
		says    []string
	}{
		"drained": {
			reason: "no controller would evict the pod",
			change: func(b *bench, node string) { b.kubectl("drain", node, "--ignore-daemonsets") },
			says:   []string{"expected the node to be schedulable, but it is cordoned"},
		},
		"not ready": {
			reason: "its kubelet would not start the pod",
			change: func(b *bench, node string) { b.report(node, "Ready", "False", "KubeletNotReady") },
			says:   []string{"expected the condition Ready to be True, but it is False (KubeletNotReady)"},
		},
		"never what is waited for": {
			reason:  "the bind waits for the requested time",
			change:  func(*bench, string) {},
			binding: []gen.BindingOption{expectsDriver(), waits("3s")},
			says:    []string{`still waiting for the label ` + driver + ` to be "550" (it is not set) after 3s`},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, shared, nil)
			node, toleration := b.ownNode("changed")
			b.podWith(byHand, toleration, b.steered())
			tc.change(b, node)
			binding := b.binding(node, tc.binding...)
			b.untilHeard(binding)
			b.assertRefused(b.bindByHand(binding), append(tc.says, "node-state: Node "+node)...)
			assert.Equal(t, []string{"refused"}, b.decisions(), tc.reason)
		})
	}
}

// A node is drained while the volume of a pod is provisioned on it, and the pod may wait. No other node is possible, so the client
// repeats the call until the node is back.
func TestNodeDrainedWhileVolumeIsMade(t *testing.T) {
	t.Parallel()
	b := newBench(t, shared, nil)
	node, toleration := b.ownNode("drained")
	b.claim("data", b.dynamic("10s"))
	b.podWith(byHand, toleration, gen.UsesClaim("data"), waits("2m"))
	bound := b.beginBind(node)
	require.Equal(t, node, b.untilSelected())
	b.kubectl("cordon", node)
	b.untilClaimBound()
	b.untilEvent("WaitingForPreBind", "Node "+node, "cordoned")
	b.kubectl("uncordon", node)
	require.NoError(t, b.end(bound))
	b.assertTopology(b.untilBound())
}

// The real kube-scheduler ignores the pod's expectations: it gets the rejection, or waits without notice.
func TestNodeStateWithKubeScheduler(t *testing.T) {
	t.Parallel()
	t.Run("refused until the expectation matches", func(t *testing.T) {
		t.Parallel()
		b := newBench(t, shared, nil)
		node, toleration := b.ownNode("late")
		b.podWith(cluster.DefaultScheduler, toleration, b.steered(), expectsDriver())
		b.untilEvent("FailedScheduling", "node-state: Node "+node, `expected the label `+driver+` to be "550", but it is not set`)
		b.installDriver(node)
		b.assertTopology(b.untilBound())
	})
	t.Run("waits until the expectation matches", func(t *testing.T) {
		t.Parallel()
		b := newBench(t, shared, nil)
		node, toleration := b.ownNode("late")
		b.podWith(cluster.DefaultScheduler, toleration, b.steered(), expectsDriver(), waits("2m"))
		b.untilEvent("WaitingForPreBind", "node-state: Node "+node, `waiting for the label `+driver)
		b.installDriver(node)
		b.assertTopology(b.untilBound())
		b.assertNeverFailed()
	})
}
