// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package resourceclaims

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/gen"
)

// waiting is a PreBind that runs in a bubble.
type waiting struct {
	*replica
	bc     *framework.BindContext
	result chan error
}

// begin runs PreBind until it waits.
func begin(ctx context.Context, t *testing.T, pod *corev1.Pod, objects ...client.Object) *waiting {
	t.Helper()
	s := newAPI(append(objects, gen.Node("node-a"), pod)...)
	w := &waiting{replica: newReplica(t, s), bc: bind(pod, "node-a", "here-1"), result: make(chan error, 1)}
	go func() { w.result <- w.PreBind(ctx, w.bc) }()
	synctest.Wait()
	return w
}

// ended returns whether PreBind has returned, and its error.
func (w *waiting) ended() (bool, error) {
	synctest.Wait()
	select {
	case err := <-w.result:
		return true, err
	default:
		return false, nil
	}
}

// waits checks that PreBind still waits.
func (w *waiting) waits(t *testing.T, reason string) {
	t.Helper()
	over, err := w.ended()
	require.False(t, over, "%s: %v", reason, err)
}

// set changes the conditions that the driver reports.
func set(conditions map[string]metav1.ConditionStatus) claimOption {
	return func(claim *resourcev1.ResourceClaim) {
		claim.Status.Devices = nil
		says("gpu-0", conditions)(claim)
	}
}

func TestWaitForConditions(t *testing.T) {
	cases := map[string]struct {
		reason string
		then   func(w *waiting)
		refuse string
		kind   framework.Kind
	}{
		"True": {reason: "upstream bind-claim-with-binding-conditions: the driver sets the conditions", then: func(w *waiting) { w.api.change("c", "driver", set(yes)) }},
		"Failed": {
			reason: "a failure condition is final", refuse: "broken (Why) because", kind: framework.KindRefuse,
			then: func(w *waiting) {
				w.api.change("c", "driver", set(map[string]metav1.ConditionStatus{"broken": "True"}))
			},
		},
		"Deallocated": {
			reason: "a scheduler deallocated the claim", refuse: "not allocated by the scheduler", kind: framework.KindRefuse,
			then: func(w *waiting) {
				w.api.change("c", "kube-scheduler", func(c *resourcev1.ResourceClaim) { c.Status = resourcev1.ResourceClaimStatus{} })
			},
		},
		"Deleted":  {reason: "the claim is gone", refuse: "does not exist", kind: framework.KindRefuse, then: func(w *waiting) { w.api.Remove(theClaim("c")) }},
		"Ends":     {reason: "the claim is being deleted", refuse: "being deleted", kind: framework.KindRefuse, then: func(w *waiting) { w.api.change("c", "", meta1(gen.Terminating())) }},
		"PodGone":  {reason: "the pod is gone", refuse: "gone", kind: framework.KindStale, then: func(w *waiting) { w.api.Remove(w.bc.Pod) }},
		"PodBound": {reason: "the pod is bound to another node", refuse: "bound elsewhere", kind: framework.KindStale, then: func(w *waiting) { w.api.Put(bound(w.bc.Pod, "node-b")) }},
		"Unreserved": {reason: "a scheduler removed the reservation, and PreBind reserves the claim again", then: func(w *waiting) {
			w.api.change("c", "kube-scheduler", unreserve)
			w.api.change("c", "driver", set(yes))
		}},
		"TimeOut": {
			reason: "upstream prebind-fail-with-binding-timeout, bind-claim-with-binding-conditions: the timeout passes", refuse: "more than 10m0s ago", kind: framework.KindRefuse,
			then: func(*waiting) { time.Sleep(timeout) }, //nolint:forbidigo // The bubble has a fake clock.
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := begin(t.Context(), t, thePod("web", uses("c")), theClaim("c", allocated("node-a", "gpu-0"), needs(both, []string{"broken"})))
				w.waits(t, "the driver has reported nothing")
				assert.Equal(t, []string{"web"}, users(w.api.claim("c")), "PreBind first reserves the claim")
				assert.Equal(t, "ResourceClaim default/c", w.bc.ReportedWait().Object.String())
				assert.Contains(t, w.bc.ReportedWait().For, "condition attached of device gpu.example.com/node-a/gpu-0")
				tc.then(w)
				over, err := w.ended()
				require.True(t, over, tc.reason)
				if tc.refuse == "" {
					require.NoError(t, err, tc.reason)
					assert.Equal(t, []string{"web"}, users(w.api.claim("c")))
					require.NoError(t, w.confirm(t.Context(), w.bc))
					return
				}
				require.ErrorContains(t, err, tc.refuse, tc.reason)
				assert.Equal(t, tc.kind, framework.AsError(Name, err).Kind, tc.reason)
			})
		})
	}
}

func unreserve(c *resourcev1.ResourceClaim) { c.Status.ReservedFor = nil }

func bound(pod *corev1.Pod, node string) *corev1.Pod {
	pod = pod.DeepCopy()
	pod.Spec.NodeName = node
	return pod
}

func TestBindingTimeout(t *testing.T) {
	cases := map[string]struct {
		reason string
		age    time.Duration
		after  time.Duration
	}{
		"FromAllocation": {reason: "the timeout starts with the allocation", age: timeout - 10*time.Second, after: 10 * time.Second},
		"FromBind":       {reason: "without a timestamp, the timeout starts with the bind", age: -1, after: timeout},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				claim := theClaim("c", allocated("node-a", "gpu-0"), needs(both, nil))
				if tc.age >= 0 {
					allocatedAt(time.Now().Add(-tc.age))(claim)
				}
				w := begin(t.Context(), t, thePod("web", uses("c")), claim)
				time.Sleep(tc.after - time.Second) //nolint:forbidigo // The bubble has a fake clock.
				w.waits(t, tc.reason)
				// An unrelated change does not restart the timeout.
				w.api.change("c", "driver", set(map[string]metav1.ConditionStatus{"attached": "True"}))
				w.waits(t, tc.reason)
				time.Sleep(time.Second) //nolint:forbidigo // The bubble has a fake clock.
				over, err := w.ended()
				require.True(t, over, tc.reason)
				require.ErrorContains(t, err, "programmed", "the message names the missing condition")
			})
		})
	}
}

func TestWaitForTheClaimOfATemplate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := begin(t.Context(), t, thePod("web", template(""), uses("c")), theClaim("c", allocated("node-a", "gpu-0")))
		w.waits(t, "upstream missing-claim: kube-controller-manager creates it")
		assert.Contains(t, w.bc.ReportedWait().For, `create the claim "gpu" from its template`)
		assert.Empty(t, w.api.written(), "nothing is reserved for a pod that may wait long")
		w.api.Put(theClaim("web-gpu", made("web"), allocated("node-a", "gpu-1")))
		w.waits(t, "the status of the pod does not name the claim yet")
		w.api.Put(thePod("web", template("web-gpu"), uses("c")))
		over, err := w.ended()
		require.True(t, over)
		require.NoError(t, err)
		for _, name := range []string{"c", "web-gpu"} {
			assert.Equal(t, []string{"web"}, users(w.api.claim(name)))
		}
	})
}

func TestWait_EndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		w := begin(ctx, t, thePod("web", uses("c")), theClaim("c", allocated("node-a", "gpu-0"), needs(both, nil)))
		cause := errors.New("the budget is spent")
		cancel(cause)
		over, err := w.ended()
		require.True(t, over)
		require.ErrorIs(t, err, cause, "PreBind returns the cause of the context")
		require.NoError(t, w.PreBindRollBack(t.Context(), w.bc))
		assert.Empty(t, users(w.api.claim("c")))
	})
}
