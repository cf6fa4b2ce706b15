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
	"k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/util/retry"

	"github.com/prebind/prebind/test/gen"
)

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

// A scheduler that repeats transient errors continues a bind whose replica is killed, and gets its devices and volume.
func testSchedulerRepeatsAfterKill(t *testing.T, w *world) {
	doomed, other := w.prebind.Replicas()[0], w.prebind.Replicas()[1]
	w.prebind.RouteTo(doomed)
	// The API server keeps its connections to the other replica.
	w.cluster.Services().Cut(other.WebhookAddress())
	w.cluster.Services().Heal(other.WebhookAddress())
	p := newGarage(t, w).parker(gpu("GPU-1"), gen.UsesClaim("data"))
	p.claim("data", p.dynamic("10s"))
	done := make(chan error, 1)
	go func() { done <- p.bindWithRetries(t.Context(), p.binding(p.garage.node)) }()
	p.untilSelected()
	w.prebind.RouteTo(other)
	require.NoError(t, doomed.Kill())
	require.NoError(t, p.end(done), "the scheduler should not see the kill")
	p.untilSettled(map[string]string{"GPU-1": "1"})
	p.assertClaimBound("data", p.garage.node)
	assert.Equal(t, []int{http.StatusInternalServerError, http.StatusCreated}, p.codes(), "the call that the killed replica held, and its repeat")
	require.NoError(t, doomed.Restart(t.Context()))
	w.prebind.RouteTo(doomed, other)
}
