// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/fakeapi"
	"github.com/prebind/prebind/test/gen"
)

// selected is what a selection of pods contains.
type selected struct {
	framework.Selection
	known map[client.ObjectKey]client.Object
}

// apply delivers an event like an informer.
func (s *selected) apply(o client.Object, deleted bool) {
	pod, ok := o.(*corev1.Pod)
	if !ok {
		return
	}
	key := client.ObjectKeyFromObject(o)
	was, known := s.known[key]
	if known && versionOf(was) > versionOf(o) {
		return
	}
	if deleted || !s.Fields.Matches(fields.Set{"spec.nodeName": pod.Spec.NodeName, "status.phase": string(pod.Status.Phase)}) {
		if delete(s.known, key); known {
			s.Handler.OnDelete(trimmed(s.Selection, was))
		}
		return
	}
	s.known[key] = o
	if known {
		s.Handler.OnUpdate(trimmed(s.Selection, was), trimmed(s.Selection, o))
	} else {
		s.Handler.OnAdd(trimmed(s.Selection, o), false)
	}
}

// trimmed returns what the cache holds instead of the object.
func trimmed(s framework.Selection, o client.Object) any {
	copied, err := s.Transform(o.DeepCopyObject())
	if err != nil {
		panic(err)
	}
	return copied
}

// slot is the slot of a pod on a node, by the replica that allowed the bind.
type slot struct{ replica, node string }

// starts checks the limit when a pod is bound, and lets the kubelet start it. The limit is exact for the binds of one replica that its watch
// shows before their reservations end.
func (w *world) starts(p *process, pod *corev1.Pod, node string, allowed time.Time) {
	w.actors.Go(func() {
		if !w.pause(w.random("kubelet "+string(pod.UID)).between(0, 40*time.Second)) {
			return
		}
		fakeapi.Change(w.api, gen.Pod(pod.Name), "kubelet", func(o *corev1.Pod) {
			if o.UID == pod.UID && o.Status.Phase == corev1.PodPending {
				o.Status.Phase = corev1.PodRunning
			}
		})
	})
	if time.Since(allowed) > framework.BindSettles-latest || p.wasSuspended() {
		return
	}
	starting := 0
	w.mu.Lock()
	w.starting[pod.UID] = slot{replica: p.id, node: node}
	by := maps.Clone(w.starting)
	w.mu.Unlock()
	for _, now := range fakeapi.All(w.api, &corev1.Pod{}) {
		if by[now.UID] == (slot{replica: p.id, node: node}) && now.Spec.NodeName == node && now.Status.Phase == corev1.PodPending {
			starting++
		}
	}
	if starting > p.startLimit {
		w.problem("%d pods start on %s by binds of %s, the last is %s", starting, node, p.id, pod.UID)
	}
}
