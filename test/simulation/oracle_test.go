// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/prebind/prebind/test/fakeapi"
	"github.com/prebind/prebind/test/gen"
)

// runs returns whether the pod uses its devices and claims.
func runs(pod *corev1.Pod) bool {
	return pod.Spec.NodeName != "" && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed
}

// checkPod checks that a pod that runs has everything that its plugins promise: it is called after each change of a pod.
func (w *world) checkPod(pod *corev1.Pod) {
	if !runs(pod) {
		return
	}
	if name := claimOf(pod); name != "" {
		claim, ok := fakeapi.Get(w.api, gen.Claim(name))
		if !ok || claim.Status.Phase != corev1.ClaimBound {
			w.problem("pod %s runs, and its claim %s is not bound", pod.UID, name)
		}
	}
	for _, other := range fakeapi.All(w.api, &corev1.Pod{}) {
		if other.UID == pod.UID || !runs(other) {
			continue
		}
		if other.Spec.NodeName == pod.Spec.NodeName && other.Annotations[gpu] == pod.Annotations[gpu] {
			w.problem("pods %s and %s have %s of %s", pod.UID, other.UID, pod.Annotations[gpu], pod.Spec.NodeName)
		}
		if claimOf(pod) == "shared" && claimOf(other) == "shared" {
			w.problem("pods %s and %s use the ReadWriteOncePod claim", pod.UID, other.UID)
		}
	}
}

// checkRunning checks that the records contain what running pods use. It is called at any time.
func (w *world) checkRunning() {
	w.executing.Lock()
	defer w.executing.Unlock()
	for _, pod := range fakeapi.All(w.api, &corev1.Pod{}) {
		if !runs(pod) {
			continue
		}
		record, ok := fakeapi.Get(w.api, &corev1.ConfigMap{ObjectMeta: gen.Pod("prebind-devices-"+pod.Spec.NodeName, gen.InNamespace(system)).ObjectMeta})
		if !ok || !strings.Contains(record.Data[string(pod.UID)], pod.Annotations[gpu]) {
			w.problem("pod %s runs on %s with %s, and the record does not contain it", pod.UID, pod.Spec.NodeName, pod.Annotations[gpu])
		}
	}
}

// checkCalm checks the state at the end: every pod is bound that can be, what it uses is confirmed, and nothing else is held.
func (w *world) checkCalm() {
	w.checkRunning()
	pods := map[types.UID]*corev1.Pod{}
	shared := false
	for _, pod := range fakeapi.All(w.api, &corev1.Pod{}) {
		pods[pod.UID] = pod
		shared = shared || runs(pod) && claimOf(pod) == "shared"
	}
	for uid, pod := range pods {
		if !runs(pod) && !w.forsaken[uid] && (claimOf(pod) != "shared" || !shared) {
			w.problem("pod %s is not bound", uid)
		}
	}
	for _, record := range fakeapi.All(w.api, &corev1.ConfigMap{}) {
		switch {
		case strings.HasPrefix(record.Name, "prebind-claim-"):
			// A pod that waits for the shared claim may hold a reservation for a moment.
			if !strings.HasSuffix(record.Name, "shared-uid") {
				w.problem("%s is left: %v", record.Name, record.Data)
			}
		case strings.HasPrefix(record.Name, "prebind-devices-"):
			for key, value := range record.Data {
				pod := pods[types.UID(key)]
				switch {
				case key == "node":
				case pod == nil:
					w.problem("%s contains a grant of a pod that does not exist: %s: %s", record.Name, key, value)
				case !runs(pod) && w.forsaken[pod.UID]:
					w.problem("%s contains a grant of a pod that the scheduler does not bind: %s: %s", record.Name, key, value)
				case runs(pod) && pod.Spec.NodeName != strings.TrimPrefix(record.Name, "prebind-devices-"):
					w.problem("%s contains a grant of a pod that runs on another node: %s: %s", record.Name, key, value)
				case runs(pod) && !strings.Contains(value, `"bound":true`):
					w.problem("%s contains a grant of a bound pod that is not confirmed: %s: %s", record.Name, key, value)
				}
			}
		}
	}
	for _, p := range w.living() {
		for _, bind := range p.engine.InFlight() {
			// A pod that waits for the shared claim may be in progress.
			pod, ok := fakeapi.Get(w.api, gen.Pod(bind.Pod))
			if !ok || runs(pod) || claimOf(pod) != "shared" {
				w.problem("%s still works on a bind: %+v", p.id, bind)
			}
		}
	}
}
