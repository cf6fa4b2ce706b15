// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

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

// installDriver gives the node the label driver.
func (b *bench) installDriver(node string) {
	b.t.Helper()
	b.kubectl("label", "node", node, driver+"=550")
}

func (b *bench) kubectl(args ...string) {
	b.t.Helper()
	require.NoError(b.t, b.cluster.RunKubectl(b.t.Context(), "", args...))
}

// manifest passes the YAML to `kubectl apply` or `kubectl delete`.
func (b *bench) manifest(verb, text string) {
	b.t.Helper()
	require.NoError(b.t, b.cluster.RunKubectl(context.WithoutCancel(b.t.Context()), text, verb, "-f", "-"))
}

// untilAnswered waits until every replica gives such an answer to a dry run of the Binding.
func (b *bench) untilAnswered(binding *corev1.Binding, is func(*admissionv1.AdmissionResponse) bool) {
	b.t.Helper()
	review := gen.Review(binding, kubeScheduler, true)
	for _, r := range b.prebind.Replicas() {
		require.EventuallyWithT(b.t, func(c *assert.CollectT) {
			answer, err := ask(b.t.Context(), r, nil, review)
			require.NoError(c, err)
			assert.True(c, is(answer))
		}, patience, 50*time.Millisecond, "%s should hear of it", r.Name())
	}
}

// ask posts the review directly to the replica, with the optional client certificate.
func ask(ctx context.Context, r *install.Replica, certificate *tls.Certificate, review []byte) (*admissionv1.AdmissionResponse, error) {
	config := &tls.Config{InsecureSkipVerify: true} // Any client that can reach the port.
	if certificate != nil {
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return certificate, nil }
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+r.WebhookAddress()+webhook.Path+"?timeout=5s", bytes.NewReader(review))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := (&http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}).Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	var answer admissionv1.AdmissionReview
	if response.StatusCode != http.StatusOK || json.Unmarshal(body, &answer) != nil || answer.Response == nil {
		return nil, fmt.Errorf("%s returned %s: %s", r.Name(), response.Status, body)
	}
	return answer.Response, nil
}

// assertRefused checks that the bind was rejected with all of the words, and that an event of the pod contains them.
func (b *bench) assertRefused(err error, words ...string) {
	b.t.Helper()
	assert.True(b.t, apierrors.IsForbidden(err), "the request should be rejected: %v (%s)", err, apierrors.ReasonForError(err))
	for _, w := range words {
		assert.ErrorContains(b.t, err, w)
	}
	b.untilEvent(append([]string{"BindRefused"}, words...)...)
	b.assertNotBound()
}

// A node is drained between the scheduler's decision and the bind.
func TestNodeIsDrainedBeforeBind(t *testing.T) {
	t.Parallel()
	b := newBench(t, shared, nil)
	node, toleration := b.ownNode("drained")
	b.podWith(byHand, toleration, b.steered())
	b.kubectl("drain", node, "--ignore-daemonsets")
	// A replica with an outdated cache would allow the bind, because Prebind reads a live node only before a rejection.
	b.untilAnswered(b.binding(node), func(a *admissionv1.AdmissionResponse) bool { return !a.Allowed })
	b.assertRefused(b.bindByHand(b.binding(node)), "node-state: Node "+node, "expected the node to be schedulable, but it is cordoned")
	assert.Equal(t, []string{"refused"}, b.decisions(), "no controller would evict the pod")
}
