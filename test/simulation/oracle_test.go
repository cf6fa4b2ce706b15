// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"maps"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/binder/framework"
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
	w.mu.Lock()
	w.bound[pod.UID] = true
	w.mu.Unlock()
	if name := claimOf(pod); name != "" {
		claim, ok := fakeapi.Get(w.api, gen.Claim(name))
		if !ok || claim.Status.Phase != corev1.ClaimBound {
			w.problem("pod %s runs, and its claim %s is not bound", pod.UID, name)
		}
	}
	w.checkReserved(pod)
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

// checkReserved checks that the ResourceClaim of a running pod is reserved for it.
func (w *world) checkReserved(pod *corev1.Pod) {
	name := devicesOf(pod)
	if name == "" {
		return
	}
	claim, _ := fakeapi.Get(w.api, gen.ResourceClaim(name))
	if !slices.ContainsFunc(claim.Status.ReservedFor, func(r resourcev1.ResourceClaimConsumerReference) bool { return r.UID == pod.UID }) {
		w.problem("pod %s runs, and ResourceClaim %s is not reserved for it", pod.UID, name)
	}
}

// checkDecision checks that a decision is right for some state that a cache can show.
func (w *world) checkDecision(p *process, pod *corev1.Pod, binding *corev1.Binding, decision binder.Decision, ended bool) {
	node := binding.Target.Name
	if now, ok := fakeapi.Get(w.api, pod); !ok || now.UID != pod.UID || now.Spec.NodeName != "" {
		return // The API server has an answer of its own.
	}
	if decision.Err == nil {
		if ended {
			w.problem("the bind of pod %s is allowed after its call has ended", pod.UID)
		}
		if own, ok := decision.Annotations[gpu]; ok && own != binding.Annotations[gpu] {
			w.problem("the answer about pod %s has the value of another Binding: %s instead of %s", pod.UID, own, binding.Annotations[gpu])
		}
		if p.suspendedLately() {
			return
		}
		for _, state := range []string{"cordoned ", "missing ", "driverless "} {
			if w.sure(state+node) && (state != "driverless " || claimOf(pod) != "") {
				w.problem("pod %s is allowed on %s, which is %s", pod.UID, node, state)
			}
		}
		return
	}
	if decision.Err.Kind != framework.KindRefuse || p.suspendedLately() {
		return
	}
	text := decision.Err.Error()
	if m := heldBy.FindStringSubmatch(text); m != nil && !w.recent(m[1]+" of "+node+" held by "+m[2]) {
		w.problem("pod %s is rejected on %s by a state that is over: %s", pod.UID, node, text)
	}
	for word, state := range map[string]string{"cordoned": "cordoned ", "does not exist": "missing "} {
		if strings.Contains(text, word) && strings.Contains(text, "Node "+node) && !w.recent(state+node) {
			w.problem("pod %s is rejected on %s, which is not %s: %s", pod.UID, node, state, text)
		}
	}
}

var (
	heldBy = regexp.MustCompile(`device (GPU-\d) .*is held by pod [^/]+/([a-z0-9-]+)`)
	holder = regexp.MustCompile(`"pod":"[^/]+/([a-z0-9-]+)"`)
	device = regexp.MustCompile(`GPU-\d`)
)

// recordChanged notes which pods hold which devices.
func (w *world) recordChanged(record *corev1.ConfigMap, deleted bool) {
	node, ok := strings.CutPrefix(record.Name, "prebind-devices-")
	if !ok {
		return
	}
	now := map[string]bool{}
	for _, entry := range record.Data {
		if pod := holder.FindStringSubmatch(entry); pod != nil && !deleted {
			for _, id := range device.FindAllString(entry, -1) {
				now[id+" of "+node+" held by "+pod[1]] = true
			}
		}
	}
	w.mu.Lock()
	before := slices.Collect(maps.Keys(w.spells))
	w.mu.Unlock()
	for _, what := range before {
		if strings.Contains(what, " of "+node+" held by ") && !now[what] {
			w.set(what, false)
		}
	}
	for what := range now {
		w.set(what, true)
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
		w.checkReserved(pod)
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
	for _, claim := range fakeapi.All(w.api, &resourcev1.ResourceClaim{}) {
		for _, r := range claim.Status.ReservedFor {
			if pod := pods[r.UID]; pod == nil || !runs(pod) {
				// A pod that waits for the shared volume keeps the reservation while it waits.
				if pod == nil || claimOf(pod) != "shared" {
					w.problem("ResourceClaim %s is reserved for %s, which does not run", claim.Name, r.UID)
				}
			}
		}
		for key := range claim.Annotations {
			if uid := strings.TrimPrefix(key, "resource-claims.prebind.dev/"); !waits(pods, uid) {
				w.problem("ResourceClaim %s has a mark: %s", claim.Name, key)
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

// waits returns whether the mark is of a pod that waits for the shared volume.
func waits(pods map[types.UID]*corev1.Pod, mark string) bool {
	for uid, pod := range pods {
		if strings.HasPrefix(mark, string(uid)+".") {
			return !runs(pod) && claimOf(pod) == "shared"
		}
	}
	return false
}
