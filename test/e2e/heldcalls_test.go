// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
	"github.com/prebind/prebind/test/install"
)

// heldCalls is the number of calls that a replica holds when it is lost.
const heldCalls = 60

// Two replicas restart one after another, or one replica is killed, while the first one holds 60 calls. A replica that stops
// completes each call, or answers 429 so that its client repeats it. No bind fails. For the calls of a killed replica the API
// server answers 500. kube-scheduler reports them and binds the pods with the other replica. BenchmarkLostReplica in test/bench
// measures the time.
func testHeldCalls(t *testing.T, w *world) {
	t.Run("rolling restart with held calls", func(t *testing.T) {
		b := newHeld(t, w)
		errs := b.hold(cluster.NoPreBindScheduler, byHand)
		for _, r := range w.prebind.Replicas() {
			require.NoError(t, r.Restart(t.Context()))
		}
		b.untilAllBound()
		for range heldCalls / 2 {
			assert.NoError(t, <-errs, "the repeats of client-go should be sufficient")
		}
		assert.Empty(t, b.failures(), "no bind should fail")
	})
	t.Run("kill with held calls", func(t *testing.T) {
		b := newHeld(t, w)
		b.hold(cluster.NoPreBindScheduler)
		killed := time.Now()
		require.NoError(t, b.holder.Kill())
		b.untilAllBound()
		t.Logf("all pods are bound %s after the kill; %d failures", time.Since(killed).Round(time.Millisecond), len(b.failures()))
		for _, failure := range b.failures() {
			assert.Contains(t, failure, "failed calling webhook", "only the lost calls should fail")
		}
		require.NoError(t, b.holder.Restart(t.Context()))
	})
}

// held contains the pods whose calls one replica holds.
type held struct {
	*bench
	holder *install.Replica
}

func newHeld(t *testing.T, w *world) *held {
	t.Helper()
	return &held{bench: newBench(t, w, nil), holder: w.prebind.Replicas()[0]}
}

// hold creates the pods for the schedulers in turn. It returns when the first replica holds a call of each pod. Afterwards their
// claims are provisioned within a few seconds. The channel receives the results of the binds by hand.
func (b *held) hold(schedulers ...string) <-chan error {
	b.t.Helper()
	replicas := b.prebind.Replicas()
	b.prebind.RouteTo(b.holder)
	for _, other := range replicas[1:] {
		// Restarting both replicas closes the connections of earlier calls.
		b.cluster.Services().Cut(other.WebhookAddress())
		b.cluster.Services().Heal(other.WebhookAddress())
	}
	provisioner := b.cluster.Process(cluster.Provisioner)
	require.NoError(b.t, provisioner.Signal(syscall.SIGSTOP))
	b.t.Cleanup(func() { _ = provisioner.Signal(syscall.SIGCONT) })
	var classes []string
	for i := range 6 {
		classes = append(classes, b.dynamic((time.Duration(i) * 3 * time.Second).String()))
	}
	errs := make(chan error, heldCalls)
	for i := range heldCalls {
		name, scheduler := fmt.Sprintf("pod-%d", i), schedulers[i%len(schedulers)]
		b.claim(name, classes[i%len(classes)])
		pod, err := b.createPod(name, scheduler, gen.UsesClaim(name))
		require.NoError(b.t, err)
		if scheduler == byHand {
			binding := gen.Binding(pod, fmt.Sprintf("node-%d", i%6+1))
			go func() { errs <- b.bindByHand(binding) }()
		}
	}
	ctx, cancel := context.WithTimeout(b.t.Context(), patience)
	defer cancel()
	require.NoError(b.t, b.holder.UntilHolds(ctx, heldCalls))
	b.prebind.RouteTo(replicas...)
	require.NoError(b.t, provisioner.Signal(syscall.SIGCONT))
	return errs
}

// untilAllBound waits until all pods are bound, and checks that each claim has one volume.
func (b *held) untilAllBound() {
	b.t.Helper()
	require.EventuallyWithT(b.t, func(c *assert.CollectT) {
		left, err := b.unbound(b.t.Context())
		require.NoError(c, err)
		assert.Empty(c, left)
	}, patience, again/10, "all pods should be bound")
	taken, err := b.taken(b.t.Context())
	require.NoError(b.t, err)
	assert.Equal(b.t, heldCalls, taken, "each claim should have one volume")
}

// failures returns the failures that kube-scheduler has reported. It omits failures before kube-scheduler observes the claim of
// the pod.
func (b *bench) failures() []string {
	var out []string
	for _, e := range b.allEvents() {
		// kube-scheduler can see a new pod before its claim.
		early := strings.Contains(e, "could not find v1.PersistentVolumeClaim")
		if strings.HasPrefix(e, "FailedScheduling") && !strings.Contains(e, "nodes are available") && !early {
			out = append(out, e)
		}
	}
	return out
}

// taken returns the number of volumes of the test's claim.
func (b *bench) taken(ctx context.Context) (int, error) {
	list, err := b.client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	n := 0
	for _, pv := range list.Items {
		if pv.Spec.ClaimRef != nil && pv.Spec.ClaimRef.Namespace == b.ns {
			n++
		}
	}
	return n, nil
}
