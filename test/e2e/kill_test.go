// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
	"github.com/prebind/prebind/test/install"
)

// stages lists the stages of a bind at which its replica is killed. A webhook holds the write in the API server until then.
var stages = map[string]struct {
	reason string
	held   bool
	// stored is set if the API server stores the held write.
	stored bool
}{
	"before the write": {reason: "the other replica must start the bind again", held: true},
	"during the write": {reason: "it is unknown whether the write was stored", held: true, stored: true},
	"after the write":  {reason: "the other replica must continue from the stored state"},
}

// writes lists the writes of the plugin.
var writes = map[string]struct {
	reason string
	// class creates the class and volumes for the claim.
	class func(b *bench) string
	// written reports whether the write is stored.
	written func(ctx context.Context, b *bench) (bool, error)
}{
	"selected-node": {
		reason: "the volume is provisioned only after this write",
		class:  func(b *bench) string { return b.dynamic("3s") },
		written: func(ctx context.Context, b *bench) (bool, error) {
			claim, err := b.client.CoreV1().PersistentVolumeClaims(b.ns).Get(ctx, "data", metav1.GetOptions{})
			return err == nil && claim.Annotations[volume.AnnSelectedNode] != "", err
		},
	},
	"claimRef": {
		reason: "the claim must not get a second volume",
		class: func(b *bench) string {
			class, _ := b.static("node-1", "1Gi", "1Gi")
			return class
		},
		written: func(ctx context.Context, b *bench) (bool, error) {
			taken, err := b.taken(ctx)
			return taken > 0, err
		},
	},
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

// gates hold the first writes of Prebind to the objects of tests until the test opens them.
type gates struct {
	mu sync.Mutex
	// of returns the gate of the class.
	of   map[string]*gate
	open chan struct{}
}

type gate struct {
	stored  bool
	arrived chan struct{}
	once    sync.Once
}

func (g *gates) add(class string, stored bool) *gate {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.of[class] = &gate{stored: stored, arrived: make(chan struct{})}
	return g.of[class]
}

// judge delays only Prebind's requests, and only while the gates are closed.
func (g *gates) judge(ctx context.Context, r *admissionv1.AdmissionRequest) error {
	if r.UserInfo.Username != "system:serviceaccount:"+install.Namespace+":prebind" {
		return nil
	}
	class, err := classOf(r)
	if err != nil {
		return err
	}
	g.mu.Lock()
	held := g.of[class]
	g.mu.Unlock()
	select {
	case <-g.open:
		return nil
	default:
	}
	if held == nil {
		return nil
	}
	held.once.Do(func() { close(held.arrived) })
	select {
	case <-g.open:
	case <-ctx.Done():
	}
	if !held.stored {
		return errors.New("the replica of the write was killed")
	}
	return nil
}

// victim is a pod whose replica is killed.
type victim struct {
	*bench
	by string
	// reached waits until the bind has reached its stage.
	reached func()
	// bound is closed when a client has bound the pod. It is nil for kube-scheduler.
	bound chan struct{}
}

// begin creates the pod. It binds a pod without a scheduler.
func (v *victim) begin() {
	v.podWith(v.by, gen.UsesClaim("data"))
	if v.by == byHand {
		v.bound = make(chan struct{})
		ctx, binding := v.t.Context(), v.binding("node-1")
		go func() {
			defer close(v.bound)
			v.insist(ctx, binding)
		}()
	}
}

// end checks that the pod is bound.
func (v *victim) end() {
	if v.bound != nil {
		<-v.bound
	}
	pod := v.untilBound()
	v.assertTopology(pod)
	v.assertClaimBound("data", pod.Spec.NodeName)
	taken, err := v.taken(v.t.Context())
	require.NoError(v.t, err)
	assert.Equal(v.t, 1, taken, "the claim should have one volume")
}

// victims creates a pod for each binder, write and stage. It omits kube-scheduler with its default profile, because Prebind
// writes nothing for it.
func victims(t *testing.T, w *world, g *gates) map[string]*victim {
	t.Helper()
	out := map[string]*victim{}
	for how, by := range binders {
		if !by.volumesByPrebind {
			continue
		}
		for what, write := range writes {
			for when, stage := range stages {
				b := newBench(t, w, nil)
				v := &victim{bench: b, by: by.scheduler}
				class := write.class(b)
				b.claim("data", class)
				if stage.held {
					arrived := g.add(class, stage.stored).arrived
					v.reached = func() {
						select {
						case <-arrived:
						case <-t.Context().Done():
						}
					}
				} else {
					v.reached = func() {
						require.EventuallyWithT(t, func(c *assert.CollectT) {
							written, err := write.written(t.Context(), b)
							require.NoError(c, err)
							assert.True(c, written)
						}, patience, again/10, "%s should be written", what)
					}
				}
				out[when+" of "+what+", "+how] = v
			}
		}
	}
	return out
}

// testKill kills the replica that does all of the work. next starts another one.
func testKill(t *testing.T, w *world, working *install.Replica, next func()) {
	g := &gates{of: map[string]*gate{}, open: make(chan struct{})}
	pods := victims(t, w, g)
	newGateHook(t, w, g)

	// Before that, only Prebind writes claims and volumes.
	controllers := w.cluster.Process(cluster.ControllerManager)
	require.NoError(t, controllers.Signal(syscall.SIGSTOP))
	t.Cleanup(func() { _ = controllers.Signal(syscall.SIGCONT) })
	for _, v := range pods {
		v.begin()
	}
	for _, v := range pods {
		v.reached()
	}
	close(g.open)
	require.NoError(t, working.Kill())
	next()
	require.NoError(t, controllers.Signal(syscall.SIGCONT))

	t.Run("the others", func(t *testing.T) {
		for name, v := range pods {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				v.t = t
				v.end()
			})
		}
	})
}

// testKills kills the replica that does the work twice.
func testKills(t *testing.T, w *world) {
	first := w.prebind.Replicas()[0]
	second, err := w.start(t.Context())
	require.NoError(t, err)
	w.prebind.RouteTo(first)
	t.Run("another one is there", func(t *testing.T) {
		testKill(t, w, first, func() { w.prebind.RouteTo(first, second) })
	})
	t.Run("it is started again", func(t *testing.T) {
		testKill(t, w, second, func() {
			require.NoError(t, second.Start())
			require.NoError(t, second.WaitReady(t.Context()))
		})
	})
}

// newGateHook registers the hook that holds Prebind's writes.
func newGateHook(t *testing.T, w *world, g *gates) {
	t.Helper()
	rules := on([]admissionregistrationv1.OperationType{admissionregistrationv1.Create, admissionregistrationv1.Update},
		"persistentvolumeclaims", "persistentvolumes")
	newHook(t, w, rules, g.judge, func() error {
		_, err := w.client.CoreV1().PersistentVolumeClaims(metav1.NamespaceDefault).Create(t.Context(), gen.Claim(canary),
			metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	})
}

// classOf returns the class of the written claim or volume.
func classOf(r *admissionv1.AdmissionRequest) (string, error) {
	var o struct {
		Spec struct {
			StorageClassName string `json:"storageClassName"`
		} `json:"spec"`
	}
	err := json.Unmarshal(r.Object.Raw, &o)
	return o.Spec.StorageClassName, err
}
