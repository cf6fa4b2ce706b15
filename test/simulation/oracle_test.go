// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

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
		w.mu.Lock()
		was, now := w.foreign[pod.UID], pod.Status.NominatedNodeName == nominated
		w.foreign[pod.UID] = was || now
		w.mu.Unlock()
		if was && !now && pod.Spec.NodeName == "" {
			w.problem("pod %s has the nominated node %q, and another component has set %s", pod.UID, pod.Status.NominatedNodeName, nominated)
		}
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
	w.checkGranted(pod)
	w.checkReserved(pod)
	w.checkSteps(pod)
	if at := w.nodeOf(pod); at != "" && at != pod.Spec.NodeName {
		w.problem("pod %s runs on %s, and its volume is on %s", pod.UID, pod.Spec.NodeName, at)
	}
	if pod.Annotations["binder.prebind.dev/attempt"] == "" {
		w.problem("pod %s runs, and does not name its attempt", pod.UID)
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

// checkGranted checks that the record of the node contains the device of a running pod.
func (w *world) checkGranted(pod *corev1.Pod) {
	record, ok := fakeapi.Get(w.api, &corev1.ConfigMap{ObjectMeta: gen.Pod("prebind-devices-"+pod.Spec.NodeName, gen.InNamespace(system)).ObjectMeta})
	if !ok || !strings.Contains(record.Data[string(pod.UID)], pod.Annotations[gpu]) {
		w.problem("pod %s runs on %s with %s, and the record does not contain it", pod.UID, pod.Spec.NodeName, pod.Annotations[gpu])
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
func (w *world) checkDecision(p *process, pod *corev1.Pod, binding *corev1.Binding, user string, decision binder.Decision, ended bool) {
	node := binding.Target.Name
	if now, ok := fakeapi.Get(w.api, pod); !ok || now.UID != pod.UID || now.Spec.NodeName != "" {
		return // The API server has an answer of its own.
	}
	if decision.Err == nil {
		if ended {
			w.problem("the bind of pod %s is allowed after its call has ended", pod.UID)
		}
		want := cmp.Or(binding.Annotations[gpu], pod.Annotations[gpu])
		if own, ok := decision.Annotations[gpu]; ok && own != want {
			w.problem("the answer about pod %s has the value of another Binding: %s instead of %s", pod.UID, own, want)
		}
		if own := decision.Annotations["sim.policy.prebind.dev/user"]; own != user {
			w.problem("the answer about pod %s has the user %q instead of %s", pod.UID, own, user)
		}
		if p.suspendedLately() {
			return
		}
		for _, state := range []string{"cordoned ", "missing ", "driverless ", "closed "} {
			if w.sure(state+node) && (state != "driverless " || claimOf(pod) != "") {
				w.problem("pod %s is allowed on %s, which is %s", pod.UID, node, state)
			}
		}
		if n := decision.Annotations["sim.policy.prebind.dev/generation"]; !w.recent("policy " + n) {
			w.problem("the answer about pod %s is by generation %s of the policy, which is old", pod.UID, n)
		}
		if n := decision.Annotations[ofSteps+"generation"]; pod.Labels[stepped] != "" && !w.recent("steps "+n) {
			w.problem("the answer about pod %s is by generation %q of the policy with tasks, which is old", pod.UID, n)
		}
		return
	}
	waits := decision.Err.Kind == framework.KindWait || strings.HasSuffix(decision.Err.Advice, "Prebind continues to prepare it") // RejectWaits.
	if !waits && !p.suspendedLately() {
		w.checkRejection(pod, node, decision.Err.Error())
	}
}

// checkRejection checks that a rejection is right for some state of the last time.
func (w *world) checkRejection(pod *corev1.Pod, node, text string) {
	if excluded.MatchString(text) && w.nodeOf(pod) != node {
		return
	}
	for _, r := range rejections {
		m := r.text.FindStringSubmatchIndex(text)
		if m == nil {
			continue
		}
		for _, template := range r.states {
			state := strings.NewReplacer("NODE", node, "UID", string(pod.UID)).Replace(string(r.text.ExpandString(nil, template, text, m)))
			absent, isAbsence := strings.CutPrefix(state, "not ")
			if isAbsence && !w.sure(absent) || !isAbsence && w.recent(state) {
				return
			}
		}
		if after := timedOut.FindStringSubmatch(text); after != nil {
			if limit, err := time.ParseDuration(after[1]); err == nil && time.Since(w.created[pod.UID]) >= limit {
				return
			}
		}
		w.problem("pod %s is rejected on %s by a state that is over: %s", pod.UID, node, text)
		return
	}
	w.problem("pod %s is rejected on %s for a reason that the oracle does not know: %s", pod.UID, node, text)
}

var timedOut = regexp.MustCompile(`(?:imed out after|limit \d+\) after|node after) ([\w.]+)`)

var excluded = regexp.MustCompile(`its node affinity excludes node`)

// rejections are the texts of rejections, each with the states of which one must have held.
var rejections = []struct {
	text   *regexp.Regexp
	states []string
}{
	{timedOut, nil},
	{regexp.MustCompile(`device (GPU-\d) .*is held by pod default/([a-z0-9-]+)`), []string{"$1 of NODE held by $2"}},
	{regexp.MustCompile(`pod ([a-z0-9-]+) on node \S+ uses the ReadWriteOncePod`), []string{"shared used by $1"}},
	{regexp.MustCompile(`it is cordoned`), []string{"cordoned NODE"}},
	{regexp.MustCompile(`the node is closed`), []string{"closed NODE"}},
	{regexp.MustCompile(`Node (\S+): not found`), []string{"not there is Node/NODE"}},
	{regexp.MustCompile(`task \S+ of \S+ failed: said ([a-z0-9-]+)`), []string{"BindTask $1 failed"}},
	// A bind remembers its node since its first call, which can be minutes ago.
	{regexp.MustCompile(`the node was deleted and recreated`), []string{"replaced Node/NODE"}},
	{regexp.MustCompile(`Pod \S+: not found`), []string{"not there is Pod/UID"}},
	{regexp.MustCompile(`(PersistentVolumeClaim|ResourceClaim) default/(\S+): (?:the claim )?does not exist`), []string{"not there is $1/$2"}},
	{regexp.MustCompile(`its PersistentVolume (\S+) does not exist`), []string{"not there is PersistentVolume/$1"}},
	{regexp.MustCompile(`PersistentVolumeClaim default/(\S+): its volume is being provisioned on node (\S+);`), []string{"$1 selects $2"}},
	{regexp.MustCompile(`PersistentVolumeClaim default/(\S+): its selected-node is not node`), []string{"$1 selects "}},
}
var (
	holder = regexp.MustCompile(`"pod":"[^/]+/([a-z0-9-]+)"`)
	device = regexp.MustCompile(`GPU-\d`)
)

// recordChanged notes which pods hold which devices.
func (w *world) recordChanged(record *corev1.ConfigMap, deleted bool) {
	node, ok := strings.CutPrefix(record.Name, "prebind-devices-")
	if !ok {
		return
	}
	now, owners := map[string]bool{}, map[string]string{}
	exists := map[string]bool{}
	for _, pod := range fakeapi.All(w.api, &corev1.Pod{}) {
		exists[string(pod.UID)] = pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed
	}
	for uid, entry := range record.Data {
		if pod := holder.FindStringSubmatch(entry); pod != nil && !deleted {
			for _, id := range device.FindAllString(entry, -1) {
				if owner := owners[id]; owner != "" && owner != pod[1] && exists[uid] {
					w.problem("%s of %s is granted to %s and to %s", id, node, owner, pod[1])
				}
				now[id+" of "+node+" held by "+pod[1]] = true
				if exists[uid] {
					owners[id] = pod[1]
				}
			}
		}
	}
	w.mu.Lock()
	before := w.held[node]
	w.held[node] = now
	w.mu.Unlock()
	for what := range before {
		if !now[what] {
			w.set(what, false)
		}
	}
	for what := range now {
		w.set(what, true)
	}
	for _, pod := range fakeapi.All(w.api, &corev1.Pod{}) {
		if runs(pod) && pod.Spec.NodeName == node {
			w.checkGranted(pod)
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
		w.checkGranted(pod)
		w.checkReserved(pod)
		w.checkSteps(pod)
	}
}

// checkCalm returns what is wrong at the end: every pod is bound that can be, what it uses is confirmed, and nothing else is held.
func (w *world) checkCalm() (wrong []string) {
	add := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	pods, waiting := map[types.UID]*corev1.Pod{}, map[types.UID]bool{}
	for _, pod := range fakeapi.All(w.api, &corev1.Pod{}) {
		pods[pod.UID], waiting[pod.UID] = pod, !runs(pod) && w.blocked(pod)
		if !runs(pod) && !w.forsaken[pod.UID] && !waiting[pod.UID] {
			add("pod %s is not bound", pod.UID)
		}
		if announced := pod.Status.NominatedNodeName; announced != "" && announced != nominated && !waiting[pod.UID] {
			add("pod %s is announced on %s", pod.UID, announced)
		}
	}
	for _, record := range fakeapi.All(w.api, &corev1.ConfigMap{}) {
		node, isDevices := strings.CutPrefix(record.Name, "prebind-devices-")
		// A pod that waits for the shared claim may hold a reservation for a moment.
		reserves := strings.HasPrefix(record.Name, "prebind-claim-shared") && slices.Contains(slices.Collect(maps.Values(waiting)), true)
		if !isDevices && !reserves {
			add("%s is left: %v", record.Name, record.Data)
		}
		for key, value := range record.Data {
			switch pod := pods[types.UID(key)]; {
			case !isDevices || key == "node":
			case pod == nil:
				add("%s contains a grant of a pod that does not exist: %s: %s", record.Name, key, value)
			case !runs(pod) && w.forsaken[pod.UID]:
				add("%s contains a grant of a pod that the scheduler does not bind: %s: %s", record.Name, key, value)
			case runs(pod) && pod.Spec.NodeName != node:
				add("%s contains a grant of a pod that runs on another node: %s: %s", record.Name, key, value)
			case runs(pod) && !strings.Contains(value, `"bound":true`):
				add("%s contains a grant of a bound pod that is not confirmed: %s: %s", record.Name, key, value)
			}
		}
	}
	for _, claim := range fakeapi.All(w.api, &resourcev1.ResourceClaim{}) {
		for _, r := range claim.Status.ReservedFor {
			// kube-controller-manager, which the simulation lacks, removes the reservations of pods that do not exist.
			if pod := pods[r.UID]; pod != nil && !runs(pod) && !waiting[r.UID] {
				add("ResourceClaim %s is reserved for %s, which does not run", claim.Name, r.UID)
			}
		}
		for key := range claim.Annotations {
			uid, _, _ := strings.Cut(strings.TrimPrefix(key, "resource-claims.prebind.dev/"), ".")
			if !waiting[types.UID(uid)] {
				add("ResourceClaim %s has a mark: %s", claim.Name, key)
			}
		}
	}
	wrong = append(wrong, w.leftTasks(pods, waiting)...)
	for _, p := range w.living() {
		for _, bind := range p.engine.InFlight() {
			if pod, ok := fakeapi.Get(w.api, gen.Pod(bind.Pod)); !ok || !waiting[pod.UID] {
				add("%s still works on a bind: %+v", p.id, bind)
			}
		}
	}
	return wrong
}

// checkMemory checks that a replica has forgotten the pods that do not exist any more. It is called when the replica has ended, because
// nothing orders its goroutines with the reads.
func (w *world) checkMemory(p *process) {
	exists := map[string]bool{}
	for _, pod := range fakeapi.All(w.api, &corev1.Pod{}) {
		exists[string(pod.UID)] = true
	}
	for _, left := range census(p) {
		// The engine remembers a fixed number of binds that waited.
		if !exists[left.uid] && left.path != "engine.waits.cache.entries" {
			w.problem("%s remembers a pod that does not exist: %s in %s", p.id, left.uid, left.path)
		}
	}
}

// blocked returns whether the pod has to wait for another one: for the shared claim, or because its volume is on a node whose devices are in use.
func (w *world) blocked(pod *corev1.Pod) bool {
	shared, used := false, map[string]bool{}
	for _, other := range fakeapi.All(w.api, &corev1.Pod{}) {
		if runs(other) {
			shared = shared || claimOf(other) == "shared"
			if other.Spec.NodeName == w.nodeOf(pod) {
				used[other.Annotations[gpu]] = true
			}
		}
	}
	return shared && claimOf(pod) == "shared" || len(used) == 2 || used[pod.Annotations[gpu]] && pod.Annotations[gpu] != ""
}
