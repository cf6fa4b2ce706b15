// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/policy/v1alpha1"
	"github.com/prebind/prebind/test/fakeapi"
	"github.com/prebind/prebind/test/gen"
)

const (
	// system is the namespace of Prebind.
	system = "prebind-system"
	// gpu is the annotation of the plugin device.
	gpu = "device.prebind.dev/gpu"
	// class is the class of claims that are provisioned on the node of the bind.
	class = "late"
	// driver provisions its volumes.
	driver = "test.prebind.dev"
	// storm is the time with faults, and calm the time after it in which everything must become right.
	storm = 8 * time.Minute
	calm  = 25 * time.Minute
)

// world is one run. It must stay in one bubble of testing/synctest.
type world struct {
	t    *testing.T
	seed uint64
	api  *fakeapi.Server
	// leases are in an API server of their own, because replicas watch them with client-go.
	leases *fakeapi.Clientset
	began  time.Time
	// storming is closed when the faults end.
	storming context.Context //nolint:containedctx // The time of the faults.
	// over ends everything.
	over   context.Context //nolint:containedctx // The life of the run.
	actors sync.WaitGroup

	mu       sync.Mutex
	replicas []*process
	number   int
	journal  []string
	problems []string
	// forsaken contains the pods, and whether the scheduler posts only one Binding for them.
	forsaken map[types.UID]bool
	// bound contains the pods that were bound.
	bound map[types.UID]bool
	// foreign are the pods that another component has nominated.
	foreign map[types.UID]bool
	// held are the states of held devices, by node.
	held map[string]map[string]bool
	// created are the times of pods.
	created map[types.UID]time.Time
	// deadly is set if replicas are killed often. Otherwise, they live long enough for others to sweep what they have written.
	deadly bool
	// stepping is set if the run has a policy with tasks.
	stepping bool
	// starting are the slots of pods in the oracle about start-limit.
	starting map[types.UID]slot
	steps    steps
	// spells are the times of states, by name.
	spells map[string]spell
	// follower is the replica in which a directed bind waits, or nil. It does not lead.
	follower atomic.Pointer[process]
	// executing is held while the API server executes a Binding or another client changes pods.
	executing sync.Mutex
}

func newWorld(t *testing.T, seed uint64) *world {
	t.Helper()
	w := &world{t: t, seed: seed, api: fakeapi.New(), leases: fakeapi.NewClientset(), began: time.Now(), forsaken: map[types.UID]bool{}, spells: map[string]spell{}, bound: map[types.UID]bool{},
		steps:    steps{generations: map[string][]taskSpec{}, histories: map[types.UID]*history{}, posted: map[string]bool{}},
		starting: map[types.UID]slot{}, foreign: map[types.UID]bool{}, held: map[string]map[string]bool{}, created: map[types.UID]time.Time{}}
	w.deadly = w.random("world").one(2)
	for _, name := range nodes {
		w.putNode(name, types.UID(name+"-uid"))
	}
	w.api.Put(gen.StorageClass(class, driver))
	w.api.Put(gen.CSIDriver(driver, false))
	w.api.Put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}})
	w.putPolicy(0)
	if w.stepping = w.random("stepping").one(2); w.stepping {
		w.putSteps(0, w.random("first steps"), false)
	}
	w.api.OnChange(w.changed)
	return w
}

// nodes of the cluster. Each has two devices.
var nodes = []string{"node-a", "node-b", "node-c"}

// random returns the random numbers of one actor, which depend on the seed only.
func (w *world) random(actor string) *dice {
	h := fnv.New64a()
	_, _ = h.Write([]byte(actor))
	return &dice{r: rand.New(rand.NewPCG(w.seed, h.Sum64()))} //nolint:gosec // A repeatable sequence.
}

// dice is safe for concurrent use.
type dice struct {
	mu sync.Mutex
	r  *rand.Rand
}

// one returns true once in n calls.
func (d *dice) one(n int) bool { return d.below(n) == 0 }

func (d *dice) below(n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.r.IntN(n)
}

func (d *dice) between(low, high time.Duration) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return low + time.Duration(d.r.Int64N(int64(high-low)+1))
}

// note adds a line to the journal, which is shown if the run fails.
func (w *world) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.journal = append(w.journal, fmt.Sprintf("%8.3fs ", time.Since(w.began).Seconds())+fmt.Sprintf(format, args...))
}

// problem records a violation.
func (w *world) problem(format string, args ...any) {
	w.note("VIOLATION: "+format, args...)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.problems = append(w.problems, fmt.Sprintf(format, args...))
}

// stormy returns whether faults are injected.
func (w *world) stormy() bool { return w.storming.Err() == nil }

// pause waits in virtual time. It returns false if the run is over.
func (w *world) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-w.over.Done():
		return false
	}
}

// changed delivers an object to the caches of all replicas, and to the controllers and the oracle.
func (w *world) changed(o client.Object, deleted bool) {
	w.mu.Lock()
	living := append([]*process(nil), w.replicas...)
	w.mu.Unlock()
	for _, p := range living {
		p.observe(o, deleted)
	}
	w.set("there is "+fakeapi.Kind(o)+"/"+o.GetName(), !deleted)
	if deleted {
		w.set("replaced "+fakeapi.Kind(o)+"/"+o.GetName(), true) // From now on.
	}
	switch o := o.(type) {
	case *corev1.ConfigMap:
		w.recordChanged(o, deleted)
	case *corev1.PersistentVolumeClaim:
		for _, node := range append(nodes, quiet, "") {
			w.set(o.Name+" selects "+node, !deleted && o.Annotations[selectedNode] == node)
		}
		if !deleted {
			w.provision(o)
		}
	case *resourcev1.ResourceClaim:
		w.collect(o)
	case *v1alpha1.BindTask:
		w.taskChanged(o, deleted)
	case *corev1.Pod:
		w.set("there is Pod/"+string(o.UID), !deleted)
		w.set("shared used by "+o.Name, !deleted && runs(o) && claimOf(o) == "shared")
		if !deleted {
			w.checkPod(o)
		}
		if claim, ok := fakeapi.Get(w.api, gen.ResourceClaim(devicesOf(o))); ok {
			w.collect(claim)
		}
	}
}

// living returns the replicas that answer.
func (w *world) living() []*process {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []*process
	for _, p := range w.replicas {
		if !p.dead() {
			all = append(all, p)
		}
	}
	return all
}

// provision binds a claim that has selected-node, as a provisioner and the PersistentVolume controller do. It sometimes asks for
// another node.
func (w *world) provision(claim *corev1.PersistentVolumeClaim) {
	node := claim.Annotations[selectedNode]
	if node == "" || claim.Spec.VolumeName != "" || claim.DeletionTimestamp != nil || strings.HasPrefix(claim.Name, slow) {
		return
	}
	d := w.random("provisioner " + claim.Name + claim.ResourceVersion)
	w.actors.Go(func() {
		takes := d.between(100*time.Millisecond, 40*time.Second)
		if w.stormy() && d.one(2) {
			takes *= 3
		}
		if !w.pause(takes) {
			return
		}
		if w.stormy() && d.one(5) {
			fakeapi.Change(w.api, claim, "provisioner", func(c *corev1.PersistentVolumeClaim) {
				if c.UID == claim.UID && c.Spec.VolumeName == "" {
					delete(c.Annotations, selectedNode)
				}
			})
			return
		}
		w.fill(claim, node)
	})
}

// fill provisions the volume of a claim.
func (w *world) fill(claim *corev1.PersistentVolumeClaim, node string) {
	now, ok := fakeapi.Get(w.api, claim)
	if !ok || now.UID != claim.UID || now.Annotations[selectedNode] != node || now.Spec.VolumeName != "" {
		return
	}
	name := "pv-" + string(claim.UID)
	volume := gen.Volume(name, gen.VolumeOfClass(class), gen.ClaimRef(now), gen.VolumePhase(corev1.VolumeBound),
		gen.VolumeSource(corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: name}}), gen.OnNode(node))
	if claim.Name == "shared" {
		volume.Spec.NodeAffinity = nil
	}
	w.api.Put(volume)
	fakeapi.Change(w.api, claim, "controller", func(c *corev1.PersistentVolumeClaim) {
		if c.UID == claim.UID && c.Spec.VolumeName == "" {
			c.Spec.VolumeName, c.Status.Phase = name, corev1.ClaimBound
			c.Annotations["pv.kubernetes.io/bind-completed"] = "yes"
		}
	})
}

// selectedNode is the annotation of a claim that is being provisioned.
const selectedNode = "volume.kubernetes.io/selected-node"

func (w *world) text() string { return strings.Join(w.journal, "\n") }
