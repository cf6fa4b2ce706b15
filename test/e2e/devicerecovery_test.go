// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prebind/prebind/test/gen"
)

// refuser is a webhook that the API server calls after Prebind. It refuses the binds of some namespaces.
type refuser struct {
	mu         sync.Mutex
	namespaces map[string]bool
}

func newRefuser(t *testing.T, w *world) *refuser {
	t.Helper()
	r := &refuser{namespaces: map[string]bool{}}
	newHook(t, w, on([]admissionregistrationv1.OperationType{admissionregistrationv1.Create}, "pods/binding"), r.judge, func() error {
		return w.client.CoreV1().Pods(metav1.NamespaceDefault).Bind(t.Context(),
			gen.Binding(gen.Pod(canary), "node-1"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	})
	return r
}

func (r *refuser) judge(_ context.Context, request *admissionv1.AdmissionRequest) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.namespaces[request.Namespace] {
		return errors.New("refused by the webhook of the test")
	}
	return nil
}

// set starts or stops the refusal of the pod.
func (r *refuser) set(p *parker, refuse bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.namespaces[p.ns] = refuse
}

// refused posts a Binding that the webhook refuses after Prebind has granted the devices.
func (r *refuser) refused(p *parker) {
	p.t.Helper()
	r.set(p, true)
	assert.ErrorContains(p.t, p.park(), "refused by the webhook of the test")
	r.set(p, false)
	entry := grantedTo(p.record(p.garage.node), p.uid)
	require.NotNil(p.t, entry, "the bind may still succeed")
	assert.False(p.t, entry.Bound)
}

// If a replica is killed during a bind, or another webhook refuses the bind, no device is lost or granted twice. node-state is
// off because the test does not need it.
func TestDeviceRecovery(t *testing.T) {
	t.Parallel()
	w := ownWorld(t, 1, "--prebind-plugins=*,-node-state")
	doomed := w.prebind.Replicas()[0]
	other, err := w.start(t.Context())
	require.NoError(t, err)
	w.prebind.RouteTo(doomed)
	hook := newRefuser(t, w)
	g := newGarage(t, w)

	// One bind has been allowed and failed, and one waits for its volume.
	left := g.parker(gpu("GPU-1"))
	hook.refused(left)
	entry := grantedTo(left.record(g.node), left.uid)
	require.NotNil(t, entry)
	require.Equal(t, doomed, left.replicaOfAttempt(entry.Grants[0].Attempt))
	waiting := g.parker(gpu("GPU-2"), nodeLock(), gen.UsesClaim("data"))
	waiting.claim("data", waiting.dynamic("15s"))
	bound := make(chan []error, 1)
	go func() { bound <- waiting.insist(t.Context(), waiting.binding(g.node)) }()
	waiting.untilSelected("data")
	require.NoError(t, doomed.Kill())
	w.prebind.RouteTo(other)

	t.Run("with", func(t *testing.T) {
		t.Run("a bind that had been allowed is swept", func(t *testing.T) {
			t.Parallel()
			left, next := left.in(t), g.in(t).parker(gpu("GPU-1"))
			next.assertRefused(next.park(), left.holds("GPU-1")+" (bind in progress)")
			left.untilFree()
			left.untilEvent("PreBindRolledBack", "device: Node "+g.node+": the pod was not bound")
			require.NoError(t, next.park())
			next.untilSettled(map[string]string{"GPU-1": "1"})
			left.until("still unbound", notBound)
		})
		t.Run("another replica continues a waiting bind", func(t *testing.T) {
			t.Parallel()
			waiting, next := waiting.in(t), g.in(t).parker(gpu("GPU-2"), nodeLock())
			<-bound
			waiting.untilSettled(map[string]string{"GPU-2": "1"})
			assert.Equal(t, other, waiting.replicaOfAttempt(waiting.untilBound().Annotations[attemptKey]))
			next.assertRefused(next.park(), waiting.holds("GPU-2"))
			waiting.deletePod()
			require.NoError(t, next.park(), "the lock should also be free")
		})
		t.Run("a bind that another webhook refuses is rolled back", func(t *testing.T) {
			t.Parallel()
			g := g.in(t)
			first, second, deleted := g.parker(gpu("GPU-3")), g.parker(gpu("GPU-3")), g.parker(gpu("GPU-4"))
			hook.refused(first)
			second.assertRefused(second.park(), first.holds("GPU-3")+" (bind in progress)")
			hook.refused(deleted)
			deleted.deletePod()
			deleted.untilFree()
			assert.NotNil(t, grantedTo(g.record(g.node), first.uid), "the device of a deleted pod should be free before the budget of the bind ends")
			first.untilFree()
			first.untilEvent("PreBindRolledBack", "device: Node "+g.node+": the pod was not bound")
			require.NoError(t, second.park())
			second.untilSettled(map[string]string{"GPU-3": "1"})
		})
		t.Run("a pod that requires a disabled plugin is refused", func(t *testing.T) {
			t.Parallel()
			b := newBench(t, w, nil)
			b.podWith(byHand, requires("device,node-state"))
			b.assertNotSwitchedOn(b.bindByHand(b.binding("node-1")), "node-state", "device", "volumebinding")
			require.NoError(t, b.bindByHand(b.binding("node-1", requires("device"))))
		})
	})
	require.NoError(t, doomed.Restart(t.Context()))
}

// in returns the garage for a subtest.
func (g *garage) in(t *testing.T) *garage {
	b := *g.bench
	b.t = t
	return &garage{bench: &b, node: g.node, toleration: g.toleration}
}

// in returns the pod for a subtest.
func (p *parker) in(t *testing.T) *parker {
	b := *p.bench
	b.t = t
	return &parker{bench: &b, garage: p.garage.in(t), uid: p.uid}
}
