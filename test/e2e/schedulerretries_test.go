// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/util/retry"

	"github.com/prebind/prebind/test/gen"
)

// transientCalls is the number of calls of kube-scheduler 1.37 for one bind that fails with transient errors.
var transientCalls = retry.DefaultBackoff.Steps

// bindWithRetries binds the pod with the rules of kube-scheduler 1.37 (BindPod and Retriable in pkg/scheduler/util of v1.37.2): it
// repeats transient errors immediately, in addition to the repeats of 429 by client-go.
func (b *bench) bindWithRetries(ctx context.Context, binding *corev1.Binding) error {
	return retry.OnError(retry.DefaultBackoff, repeatedByScheduler, func() error {
		return b.client.CoreV1().Pods(binding.Namespace).Bind(ctx, binding, metav1.CreateOptions{})
	})
}

// repeatedByScheduler reports whether kube-scheduler 1.37 repeats a bind after the error.
func repeatedByScheduler(err error) bool {
	return apierrors.IsInternalError(err) || apierrors.IsServiceUnavailable(err) || net.IsConnectionRefused(err)
}

// codes returns the HTTP codes of all calls for binds in the namespace, in order.
func (b *bench) codes() []int {
	b.t.Helper()
	var out []int
	for _, e := range b.audited() {
		if e.ResponseStatus != nil {
			out = append(out, int(e.ResponseStatus.Code))
		}
	}
	return out
}

// times returns the code n times.
func times(n, code int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = code
	}
	return out
}

// A scheduler that repeats transient errors gets final answers that it does not repeat.
func TestSchedulerRepeatsTransientErrors(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		reason  string
		prepare func(p *parker)
		options []gen.BindingOption
		is      func(error) bool
		calls   []int
	}{
		"bound": {
			reason: "one call is sufficient", calls: []int{http.StatusCreated},
		},
		"stale": {
			reason: "the Binding stays stale", options: []gen.BindingOption{gen.AtVersion("1")},
			is: isStale, calls: []int{http.StatusPreconditionFailed},
		},
		"already bound": {
			reason:  "the API server rejects the Binding itself",
			prepare: func(p *parker) { require.NoError(p.t, p.park()) },
			is:      apierrors.IsConflict, calls: []int{http.StatusCreated, http.StatusConflict},
		},
		"refused": {
			reason: "the device belongs to another pod",
			prepare: func(p *parker) {
				require.NoError(p.t, p.garage.parker(gpu("GPU-1")).park())
			},
			options: []gen.BindingOption{gpu("GPU-1")},
			is:      apierrors.IsForbidden, calls: []int{http.StatusForbidden},
		},
		"invalid": {
			reason: "the annotation stays invalid", options: []gen.BindingOption{gpu("GPU-1,GPU-1")},
			is: apierrors.IsInvalid, calls: []int{http.StatusUnprocessableEntity},
		},
		"internal error": {
			reason: "the error can be temporary, so the scheduler repeats the call",
			prepare: func(p *parker) {
				first := p.garage.parker()
				require.NoError(p.t, first.park(gpu("GPU-2")))
				first.untilSettled(map[string]string{"GPU-2": "1"})
				_, err := p.records().Patch(p.t.Context(), recordOf(p.garage.node), types.MergePatchType,
					[]byte(`{"data":{"`+string(first.uid)+`":"damaged"}}`), metav1.PatchOptions{})
				require.NoError(p.t, err)
			},
			options: []gen.BindingOption{gpu("GPU-1")},
			is:      apierrors.IsInternalError, calls: times(transientCalls, http.StatusInternalServerError),
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newGarage(t, shared).parker()
			if tc.prepare != nil {
				tc.prepare(p)
			}
			err := p.bindWithRetries(t.Context(), p.binding(p.garage.node, tc.options...))
			if tc.is == nil {
				require.NoError(t, err, tc.reason)
			} else {
				require.Error(t, err, tc.reason)
				assert.True(t, tc.is(err), "%s: %v", tc.reason, err)
			}
			assert.Equal(t, tc.calls, p.codes(), tc.reason)
		})
	}
}

// A scheduler that repeats transient errors continues a bind whose replica is killed, and gets its devices and volumes once.
func testSchedulerRepeatsAfterKill(t *testing.T, w *world) {
	doomed, other := w.prebind.Replicas()[0], w.prebind.Replicas()[1]
	w.prebind.RouteTo(doomed)
	// The API server keeps its connections to the other replica.
	w.cluster.Services().Cut(other.WebhookAddress())
	w.cluster.Services().Heal(other.WebhookAddress())
	g := newGarage(t, w)
	waiting := func(device string) (*parker, <-chan error) {
		p := g.parker(gpu(device), gen.UsesClaim("data"))
		p.claim("data", p.dynamic("10s"))
		done := make(chan error, 1)
		go func() { done <- p.bindWithRetries(t.Context(), p.binding(g.node)) }()
		p.untilSelected()
		return p, done
	}
	settled := func(p *parker, device string) {
		p.untilSettled(map[string]string{device: "1"})
		p.assertClaimBound("data", g.node)
		taken, err := p.taken(t.Context())
		require.NoError(t, err)
		assert.Equal(t, 1, taken, "the claim should have one volume")
	}

	// The other replica answers the repeat.
	p, done := waiting("GPU-1")
	w.prebind.RouteTo(other)
	require.NoError(t, doomed.Kill())
	require.NoError(t, p.end(done), "the scheduler should not see the kill")
	settled(p, "GPU-1")
	assert.Equal(t, []int{http.StatusInternalServerError, http.StatusCreated}, p.codes(), "the call that the killed replica held, and its repeat")

	// No replica answers. The scheduler gives up, and schedules the pod again later.
	p, done = waiting("GPU-2")
	require.NoError(t, other.Kill())
	err := p.end(done)
	require.True(t, apierrors.IsInternalError(err), "%v", err)
	assert.ErrorContains(t, err, "failed calling webhook")
	assert.Equal(t, times(transientCalls, http.StatusInternalServerError), p.codes())
	require.NoError(t, doomed.Start())
	require.NoError(t, doomed.WaitReady(t.Context()))
	w.prebind.RouteTo(doomed)
	require.NoError(t, p.bindWithRetries(t.Context(), p.binding(g.node)))
	settled(p, "GPU-2")
	require.NoError(t, other.Restart(t.Context()))
	w.prebind.RouteTo(doomed, other)
}
