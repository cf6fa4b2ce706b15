// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
)

// attemptKey is the annotation with the attempt that bound the pod.
const attemptKey = "binder.prebind.dev/attempt"

// notTheFirst refuses the first Binding of each pod. It distinguishes pods by the UID of the Binding, which Prebind sets if the scheduler does not.
type notTheFirst struct {
	t    *testing.T
	mu   sync.Mutex
	seen map[types.UID]bool
}

func (n *notTheFirst) judge(_ context.Context, r *admissionv1.AdmissionRequest) error {
	var binding corev1.Binding
	if err := json.Unmarshal(r.Object.Raw, &binding); err != nil {
		return err
	}
	assert.NotEmpty(n.t, binding.UID, "the webhook should get a Binding with the UID of its pod")
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.seen[binding.UID] {
		return nil
	}
	n.seen[binding.UID] = true
	return errors.New("the first Binding of each pod is refused")
}

// Another webhook refuses a bind that Prebind has allowed. The second bind needs no writes. The test uses one replica, so that
// the same replica handles both binds.
func testRefusedAfterwards(t *testing.T, w *world) {
	hook := &notTheFirst{t: t, seen: map[types.UID]bool{}}
	newHook(t, w, on([]admissionregistrationv1.OperationType{admissionregistrationv1.Create}, "pods/binding"), hook.judge, func() error {
		return w.client.CoreV1().Pods(metav1.NamespaceDefault).Bind(t.Context(),
			gen.Binding(gen.Pod(canary), "node-1"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	})
	t.Run("with", func(t *testing.T) {
		for name, by := range binders {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				b := newBench(t, w, nil)
				b.claim("data", b.dynamic("6s"))
				b.allow("node-1") // Both Bindings name the same node.
				b.podWith(by.scheduler, gen.UsesClaim("data"), b.steered())
				if by.scheduler == byHand {
					assert.ErrorContains(t, b.bindByHand(b.binding("node-1")), "the first Binding of each pod is refused")
					assert.NoError(t, b.bindByHand(b.binding("node-1")), "the second time")
				} else {
					b.untilEvent("FailedScheduling", "the first Binding of each pod is refused")
				}
				pod := b.untilBound()
				b.assertTopology(pod)
				b.assertClaimBound("data", pod.Spec.NodeName)

				said := b.decisions()
				require.GreaterOrEqual(t, len(said), 2)
				assert.Equal(t, []string{"allowed", "allowed"}, said[len(said)-2:], "the second bind should not wait again")
				assert.False(t, says(b.events(), "BindRefused"), "Prebind has refused nothing: %q", b.events())
				assert.False(t, says(b.events(), "PreBindRolledBack"), "the pod is bound: %q", b.events())
				if by.volumesByPrebind {
					b.untilEvent("WaitingForPreBind", b.ns+"/data")
					assert.NotEmpty(t, pod.Annotations[attemptKey], "the pod should have the attempt of the first bind")
				} else {
					assert.NotContains(t, pod.Annotations, attemptKey, "kube-scheduler has completed the preparation")
				}
			})
		}
	})
}

// A bound pod has the annotation exactly if its bind had an attempt. The test uses one replica. With more replicas, the last call
// could reach a replica without the attempt.
func testAttemptAnnotation(t *testing.T, w *world) {
	tests := map[string]struct {
		reason string
		claims func(b *bench) []string
		// attempted is set if the bind must prepare the claims.
		attempted bool
	}{
		"no claims": {
			reason: "the pod needs no preparation",
			claims: func(*bench) []string { return nil },
		},
		"a claim that is bound": {
			reason: "the preparation is complete",
			claims: func(b *bench) []string {
				b.claim("data", b.class(cluster.ProvisionerName, gen.Immediate()))
				b.untilClaimBound()
				return []string{"data"}
			},
		},
		"a claim whose volume must be provisioned": {
			reason: "the attempt writes selected-node",
			claims: func(b *bench) []string {
				b.claim("data", b.dynamic("1s"))
				return []string{"data"}
			},
			attempted: true,
		},
		"a claim that a volume fits": {
			reason: "the attempt writes claimRef",
			claims: func(b *bench) []string {
				class, _ := b.static("node-2", "1Gi")
				b.claim("data", class)
				return []string{"data"}
			},
			attempted: true,
		},
	}
	for name, tc := range tests {
		for how, by := range binders {
			t.Run(name+", "+how, func(t *testing.T) {
				t.Parallel()
				b := newBench(t, w, nil)
				pod := b.bind(by.scheduler, "node-2", tc.claims(b)...)
				if tc.attempted && by.volumesByPrebind {
					assert.NotEmpty(t, pod.Annotations[attemptKey], tc.reason)
				} else {
					assert.NotContains(t, pod.Annotations, attemptKey, tc.reason)
				}
			})
		}
	}
}
