// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	oldframework "github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/gen"
)

// using contains the devices of a node that pods use or are about to use, and the pods with
// its lock.
type using struct {
	devices map[types.UID]devices
	locks   map[types.UID]bool
}

// check checks the invariants.
func (m *model) check() {
	on := map[string]*using{}
	for _, node := range nodes {
		on[node] = &using{devices: map[types.UID]devices{}, locks: map[types.UID]bool{}}
	}
	for _, pod := range m.allPods() {
		if whereaboutsOf(&pod, pod.UID, pod.Spec.NodeName) == oldframework.BoundHere {
			if says := grantOf(&pod); len(says.Devices) > 0 {
				on[pod.Spec.NodeName].devices[pod.UID] = says.Devices
			}
		}
	}
	for _, f := range m.flights {
		if u := on[f.bc.Node.Name]; m.alive(f) {
			u.devices[f.bc.Pod.UID] = most(u.devices[f.bc.Pod.UID], f.ask.devices)
			if f.ask.lock {
				u.locks[f.bc.Pod.UID] = true
			}
		}
	}
	for node, u := range on {
		rec := m.s.record(node)
		if rec == nil {
			var err error
			if rec, err = restore(m.t.Context(), m.s, node); err != nil {
				m.failf("%v", err)
			}
		}
		sum := map[string]share{}
		for uid, held := range u.devices {
			for key, ids := range held {
				for id, s := range ids {
					if sum[id] += s; sum[id] > whole {
						m.failf("%s is granted twice on %s: %v", id, node, u.devices)
					}
					if e := rec.Entries[uid]; e == nil || e.held(key, id) < s {
						m.failf("the record of %s does not show that %s holds %s", node, uid, id)
					}
				}
			}
		}
		if len(u.locks) > 1 {
			m.failf("the lock of %s has two holders: %v", node, u.locks)
		}
	}
}

func most(a, b devices) devices {
	all := devices{}
	for _, d := range []devices{a, b} {
		for key, ids := range d {
			if all[key] == nil {
				all[key] = map[string]share{}
			}
			for id, s := range ids {
				all[key][id] = max(all[key][id], s)
			}
		}
	}
	return all
}

func (m *model) allPods() []corev1.Pod {
	var pods corev1.PodList
	require.NoError(m.t, m.s.List(m.t.Context(), &pods))
	return pods.Items
}

// settle completes all binds and checks the remaining records.
func (m *model) settle() {
	m.calm = true
	for _, r := range m.replicas {
		r.cutOff = false
	}
	m.logf("--- settling")
	for _, write := range m.late {
		write()
	}
	for len(m.flights) > 0 {
		m.land()
		m.check()
	}
	for _, r := range m.replicas {
		for len(r.attempts) > 0 {
			m.outcome(r)
		}
	}
	m.clean()
	for _, node := range nodes {
		rec := m.s.record(node)
		if rec == nil {
			continue
		}
		if rec.Lock != nil {
			m.failf("%s is still locked", node)
		}
		for uid, e := range rec.Entries {
			m.entryIsRight(node, uid, e)
		}
	}
	for _, pod := range m.allPods() {
		if m.chance(50) {
			m.s.finish(&pod)
		} else {
			m.s.delete(&pod)
		}
	}
	if m.chance(50) {
		m.newcomers()
	}
	m.clean()
	m.clean()
	for _, node := range nodes {
		if object := m.s.object(node); object != nil {
			m.failf("the record of %s is not empty", node)
		}
	}
}

// newcomers checks that new pods get the devices of pods that are gone before Tidy runs.
func (m *model) newcomers() {
	for _, node := range nodes {
		pod := podNamed(m.name("p"))
		require.NoError(m.t, m.s.Create(m.t.Context(), pod))
		bc := bindOf(pod, m.name("x-"), gen.Annotation(gpu, "G1,G2,G3"))
		bc.Node = gen.Node(node)
		if err := prepare(m.t.Context(), m.replicas[1].plugin, bc); err != nil {
			m.failf("a new pod must get the devices of deleted pods: %v", err)
		}
		m.s.delete(pod)
	}
}

// clean runs the sweep and Tidy of the leader.
func (m *model) clean() {
	r := m.replicas[0]
	for range 3 {
		require.NoError(m.t, r.cached.load(m.t.Context()))
		m.sweep(r)
		require.NoError(m.t, r.plugin.Tidy(m.t.Context()))
		m.check()
	}
}

// entryIsRight checks that an entry belongs to a running pod and contains only what the pod
// uses.
func (m *model) entryIsRight(node string, uid types.UID, e *entry) {
	pod := m.live(gen.Pod(e.Pod.Name))
	if whereaboutsOf(pod, uid, node) != oldframework.BoundHere || !e.Bound {
		m.failf("%s holds devices of %s but does not run there", uid, node)
	}
	says := grantOf(pod)
	if len(e.Grants) != 1 || !e.Grants[0].Devices.equal(says.Devices) {
		m.failf("%s uses %s but holds %v", uid, says.Devices, e.Grants)
	}
}
