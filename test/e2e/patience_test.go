// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
)

// timeoutKey is the annotation with which a pod requests another budget.
const timeoutKey = "binder.prebind.dev/timeout"

// A client with a short timeout tries another node while the volume is being provisioned on the first one. The denial names the first
// node, and a Binding to that node succeeds. kube-scheduler has no such timeout, and its next decision considers the selected node of
// the claim.
func TestSchedulerGivesUpAndMovesOn(t *testing.T) {
	t.Parallel()
	b := newBench(t, shared, nil)
	b.claim("data", b.dynamic("30s"))
	b.pod(byHand, "data")

	ctx, giveUp := context.WithCancel(t.Context())
	defer giveUp()
	first := make(chan error, 1)
	go func() {
		post := b.client.CoreV1().RESTClient().Post().Namespace(b.ns).Resource("pods").Name("pod").SubResource("binding")
		first <- post.Body(b.binding("node-1")).MaxRetries(0).Do(ctx).Error()
	}()
	require.Equal(t, "node-1", b.untilSelected("data"))
	giveUp()
	require.Error(t, b.end(first), "the pod should not be bound before its volume exists")

	err := b.bindByHand(b.binding("node-2"))
	assert.True(t, apierrors.IsForbidden(err), "the request should be refused: %v", err)
	for _, words := range []string{b.ns + "/data", "being provisioned on node node-1", "bind the pod to node-1"} {
		assert.ErrorContains(t, err, words)
	}

	require.NoError(t, b.bindByHand(b.binding("node-1")))
	pod := b.untilBound()
	assert.Equal(t, "node-1", pod.Spec.NodeName)
	b.assertTopology(pod)
	b.assertClaimBound("data", "node-1")
}

// Events of a pod contain the object that its bind waits for and the reason of a rejection, because a scheduler may log neither.
func TestEvents(t *testing.T) {
	t.Parallel()
	for name, by := range binders {
		if !by.volumesByPrebind {
			continue // kube-scheduler never waits in Prebind, and reports problems of volumes itself.
		}
		t.Run(name+", waiting", func(t *testing.T) {
			t.Parallel()
			b := newBench(t, shared, nil)
			b.claim("data", b.dynamic("12s"))
			pod := b.bind(by.scheduler, "node-6", "data")
			b.untilEvent("WaitingForPreBind", "PersistentVolumeClaim "+b.ns+"/data", "provisioning", pod.Spec.NodeName)
			b.assertFewEvents("WaitingForPreBind")
			assert.False(t, says(b.events(), "BindRefused"), "no Binding should be refused: %q", b.events())
		})
		t.Run(name+", refused", func(t *testing.T) {
			t.Parallel()
			b := newBench(t, shared, nil)
			b.claim("data", b.class(cluster.ProvisionerName, gen.Parameter("fail", "reschedule"), gen.Parameter("failNodes", "node-6")))
			b.allow("node-6")
			b.podWith(by.scheduler, gen.UsesClaim("data"), b.steered())
			if by.scheduler == byHand {
				assert.True(t, apierrors.IsForbidden(b.bindByHand(b.binding("node-6"))))
			}
			b.untilEvent("BindRefused", "PersistentVolumeClaim "+b.ns+"/data", "node-6", "requests another node")
		})
	}
}

// A pod can request another budget.
func TestTimeoutAnnotation(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		reason string
		value  string
		// always is set if the case also applies to pods that do not wait, such as pods whose volumes kube-scheduler has bound.
		always bool
		is     func(error) bool
		says   []string
	}{
		"a short time": {
			reason: "the volume is never provisioned, and the pod requests a short budget",
			value:  "2s",
			is:     apierrors.IsForbidden,
			says:   []string{"timed out after 2s", "/data", "waiting for provisioning"},
		},
		"no time": {
			reason: "the denial reports an invalid value instead of a wait of ten minutes",
			value:  "soon",
			always: true,
			is:     apierrors.IsInvalid,
			says:   []string{timeoutKey, "invalid duration"},
		},
		"a negative time": {
			reason: "a negative duration is invalid",
			value:  "-5s",
			always: true,
			is:     apierrors.IsInvalid,
			says:   []string{timeoutKey, "invalid duration"},
		},
	}
	for name, tc := range tests {
		for how, by := range binders {
			if !by.volumesByPrebind && !tc.always {
				continue // kube-scheduler waits itself and ignores the annotation.
			}
			t.Run(name+", "+how, func(t *testing.T) {
				t.Parallel()
				b := newBench(t, shared, nil)
				options := []gen.PodOption{gen.Annotation(timeoutKey, tc.value)}
				if by.volumesByPrebind {
					b.claim("data", b.dynamic("10m"))
					options = append(options, gen.UsesClaim("data"))
				}
				b.podWith(by.scheduler, options...)
				if by.scheduler == byHand {
					began := time.Now()
					err := b.bindByHand(b.binding("node-1"))
					assert.True(t, tc.is(err), "%s: %v", tc.reason, err)
					assert.Less(t, time.Since(began), patience, "the wait should be shorter than the operator's ten minutes")
					for _, words := range tc.says {
						assert.ErrorContains(t, err, words)
					}
				} else {
					b.untilEvent(append(tc.says, "FailedScheduling")...)
				}
				b.untilEvent(append(tc.says, "BindRefused")...)
			})
		}
	}
}
