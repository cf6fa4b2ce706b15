// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package resourceclaims

import (
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/test/gen"
)

// check checks the conditions that must be true at any time.
func (m *model) check() {
	for i := range 5 {
		pod := &corev1.Pod{}
		if m.s.get(client.ObjectKey{Namespace: "default", Name: fmt.Sprintf("pod%d", i)}, pod) != nil || pod.Spec.NodeName == "" {
			continue
		}
		for _, ref := range pod.Spec.ResourceClaims {
			claim := m.s.claim(*ref.ResourceClaimName)
			if !reservedFor(claim, pod.UID) {
				m.fault("%s is bound, but %s is not reserved for it", pod.UID, claim.Name)
				continue
			}
			if fits, err := admits(claim.Status.Allocation.NodeSelector, gen.Node(pod.Spec.NodeName)); !fits || err != nil {
				m.fault("%s is bound to %s, where %s cannot be used", pod.UID, pod.Spec.NodeName, claim.Name)
			}
		}
	}
	m.s.mu.Lock()
	m.faults = append(m.faults, m.s.faults...)
	m.s.faults = nil
	m.s.mu.Unlock()
}

// settle completes all tasks and checks the conditions that must be true then.
func (m *model) settle() {
	m.calm = true
	for range 20_000 {
		ready := m.ready()
		if len(ready) == 0 {
			break
		}
		m.run(ready[0])
		m.check()
	}
	for _, late := range m.late {
		late()
		m.check()
	}
	for _, me := range m.tasks {
		if !me.ended {
			m.fault("%s does not end", me.name)
		}
	}
	m.controller()
	for range 3 {
		for _, r := range m.replicas {
			r.cache.freeze()
			m.sweep(m.t.Context(), r)
		}
	}
	m.check()
	for _, name := range m.claims() {
		claim := m.s.claim(name)
		if marks := unsettled(claim); len(marks) > 0 {
			m.fault("%s still has marks: %v", name, marks)
		}
		for _, r := range claim.Status.ReservedFor {
			if pod := (&corev1.Pod{ObjectMeta: gen.Pod(r.Name, gen.UID(r.UID)).ObjectMeta}); !m.isBound(pod) {
				m.fault("%s is reserved for %s, which is not bound", name, r.UID)
			}
		}
	}
}

// drain ends the tasks after a fault.
func drain(m *model) {
	faults := m.faults
	m.calm = true
	for range 20_000 {
		ready := m.ready()
		if len(ready) == 0 {
			break
		}
		ready[0].dead = true
		m.run(ready[0])
	}
	m.faults = faults
}

// noteTheft records a fault if the plugin removes a reservation of a scheduler.
func (s *apiServer) noteTheft(before, after client.Object, manager string) error {
	was, ok := before.(*resourcev1.ResourceClaim)
	if !ok || manager != string(fieldOwner) {
		return nil
	}
	now, ok := after.(*resourcev1.ResourceClaim)
	if !ok {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, entry := range was.ManagedFields {
		var fields map[string]map[string]map[string]any
		if entry.Manager != "kube-scheduler" || json.Unmarshal(entry.FieldsV1.GetRawBytes(), &fields) != nil {
			continue
		}
		for _, r := range was.Status.ReservedFor {
			if fields["f:status"]["f:reservedFor"][`k:{"uid":"`+string(r.UID)+`"}`] != nil && !reservedFor(now, r.UID) {
				s.faults = append(s.faults, fmt.Sprintf("%s: the plugin removed the scheduler's reservation for %s", was.Name, r.UID))
			}
		}
	}
	return nil
}
