// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/storage/volume"

	"github.com/prebind/prebind/internal/work"
)

// Names of PreBind plugins that checks use.
const (
	nodeState = "node-state"
	device    = "device"
)

const (
	// deviceAnnotation requests a device of a resource that no node has. Prebind does not check that devices exist.
	deviceAnnotation = "device.prebind.dev/conformance"
	// expectAnnotation and waitAnnotation make a pod wait in Prebind for a label of its node.
	expectAnnotation = "node-state.prebind.dev/expect"
	waitAnnotation   = "node-state.prebind.dev/wait"
	// ownAnnotation is an annotation that the scheduler must not remove.
	ownAnnotation = "conformance.prebind.dev/own"
	// exemptLabel exempts a namespace from Prebind in the shipped webhook configuration.
	exemptLabel = "prebind.dev/exempt"
)

const (
	// settles is the time in which a scheduler that reacts at once has done so.
	settles = 2 * time.Second
	// appliedTime is the time in which the API server applies a new admission configuration.
	appliedTime = time.Minute
	// provisionTime is the time from the request for a volume to its creation. It is longer than the time after which Prebind
	// reports a wait.
	provisionTime = 8 * time.Second
	// refused is the number of pods of the check refused. Some schedulers try only some of them again.
	refused = 6
	// waiters is the number of pods that wait in the check workers. It is above the usual number of bind workers.
	waiters = 12
)

// Texts of advice.
var (
	adviceRepeat = "After a 429, keep the node for the pod and post the same Binding again after Retry-After. client-go does it ten times, unless the client sets MaxRetries(0). " + adviceTimeout
	adviceStay   = "A 429 is not a failure: keep the node for the pod, and post the same Binding again after Retry-After. Or the client that binds has a timeout (rest.Config.Timeout), and the scheduler never gets the 429. " + adviceTimeout
	// adviceTimeout is for a scheduler that gets an error of its client instead of the answer.
	adviceTimeout = "Leave rest.Config.Timeout at 0 (" + guide + "#time-limits)."
	adviceAgain   = "After a refusal, release the node and schedule the pod again, with backoff, as a pod that does not fit. Do not drop the pod, and do not mark it as failed."
	adviceWorkers = "Bind other pods while some wait. If Bindings of only some pods waited, their number is the limit of binds in progress: use more bind workers, a goroutine for each bind, or a delayed queue. " +
		"If one waited, look for a lock that the scheduler holds while it binds. If all waited, look for the rate limit of its client (QPS)."
	adviceUID = "Set metadata.uid of the Binding to the UID of the pod that you scheduled."
)

// check tests one rule of the contract.
type check struct {
	name string
	// rule is the rule in a few words.
	rule string
	// section is the anchor of the rule in docs/for-schedulers.md.
	section string
	// plugins are the PreBind plugins that the check needs.
	plugins []string
	// alone runs the check after the others.
	alone bool
	// run makes the check, and returns what it has observed.
	run func(ctx context.Context, t *trial) string
}

// checks returns all checks in the order of the report.
func checks() []check {
	return []check{
		{name: "bind", rule: "Bind a pod to the node that it requires.", section: "answers", run: checkBind},
		{name: "annotations", rule: "Keep the annotations that Prebind adds.", section: "request-devices-plugins-and-a-budget", run: checkAnnotations},
		{name: "uid", rule: "Set the UID of the pod in the Binding.", section: "set-the-uid", run: checkUID},
		{name: "wait", rule: "Repeat a Binding that has to wait (429).", section: "answers", plugins: []string{nodeState}, run: checkWait},
		{name: "refused", rule: "Try again after a refusal (403), with backoff.", section: "answers", plugins: []string{device}, run: checkRefused},
		{name: "invalid", rule: "Do not repeat an invalid Binding (422) in a loop.", section: "answers", run: checkInvalid},
		{name: "internal", rule: "Try again after an internal error (500).", section: "answers", plugins: []string{device}, run: checkInternal},
		{name: "stale", rule: "Drop the bind of a deleted pod.", section: "set-the-uid", plugins: []string{nodeState}, run: checkStale},
		{name: "volume", rule: "Keep the node while volumes are prepared.", section: "repeat-a-binding", plugins: []string{"volumebinding"}, run: checkVolume},
		{name: "workers", rule: "Bind other pods while some wait.", section: "few-bind-workers", plugins: []string{nodeState}, alone: true, run: checkWorkers},
		{name: "burst", rule: "Bind many pods, each once.", section: "time-limits", alone: true, run: checkBurst},
	}
}

// Describe returns one line for each check, with its name and its rule.
func Describe() string {
	var lines strings.Builder
	for _, c := range checks() {
		fmt.Fprintf(&lines, "  %-21s %s\n", c.name, c.rule)
	}
	return lines.String()
}

// choose returns the checks of a run: the first check, and those that the expression matches. Nil matches all.
func choose(names *regexp.Regexp) []check {
	all := checks()
	return slices.DeleteFunc(all, func(c check) bool { return c.name != all[0].name && names != nil && !names.MatchString(c.name) })
}

// checkBind checks that the scheduler binds a pod to the node that the pod requires.
func checkBind(ctx context.Context, t *trial) string {
	began := time.Now()
	pod := t.creates(ctx, "bind", onNode(t.nodes[0]))
	pod = t.bound(ctx, pod, fmt.Sprintf("Check that a scheduler with the name %s runs, and that it may bind pods in all namespaces.", t.Scheduler))
	t.on(pod, t.nodes[0].Name, "its nodeSelector requires the node", "Observe spec.nodeSelector of the pod.")
	return fmt.Sprintf("bound to %s after %s", pod.Spec.NodeName, seconds(time.Since(began)))
}

// checkAnnotations checks that a bound pod has the annotations of Prebind's mutators, and keeps them.
func checkAnnotations(ctx context.Context, t *trial) string {
	pod := t.bound(ctx, t.creates(ctx, "annotations", annotation(ownAnnotation, "kept")), "Bind the pod.")
	x, err := t.explain(ctx, pod.Spec.NodeName, nil)
	t.must(err)
	want := x.Annotations // Only those that depend on the node alone.
	maps.DeleteFunc(want, func(key, _ string) bool {
		return !strings.HasPrefix(key, "topology.prebind.dev/") && !strings.HasPrefix(key, "node-info.prebind.dev/")
	})
	count := len(want)
	if count == 0 {
		t.skips("no mutator adds annotations of the node, so it cannot be observed that binds pass Prebind; switch on the mutator topology")
	}
	want[ownAnnotation] = "kept"
	// A scheduler that writes its own copy of the pod after the bind removes annotations.
	t.until(ctx, settles, func(context.Context) (bool, error) { return false, nil })
	now, err := t.read(ctx, pod)
	t.must(err)
	maps.DeleteFunc(want, func(key, value string) bool { return now.Annotations[key] == value })
	if len(want) > 0 {
		t.violates("Bind with a Binding (POST pods/NAME/binding). Do not write the annotations of the pod after the bind from a copy that was read before it.",
			"pod %s on node %s lacks %s", pod.Name, pod.Spec.NodeName, labels.Set(want))
	}
	return fmt.Sprintf("%d annotations equal those that Prebind announces for node %s", count, pod.Spec.NodeName)
}

// waits makes the pod wait until its node has a label.
func waits(pod *corev1.Pod) {
	pod.Annotations[expectAnnotation], pod.Annotations[waitAnnotation] = nodeLabel(pod.Namespace, pod.Name), (maxWait + time.Minute).String()
}

// checkUID checks that the Binding has the UID of the pod. Prebind adds a missing UID, so it cannot be observed later. The check
// therefore uses a second namespace, which is exempt from Prebind, and a policy that rejects Bindings without a UID there.
func checkUID(ctx context.Context, t *trial) string {
	t.apply(ctx, "uid.yaml", "")
	in := func(pod *corev1.Pod) { pod.Namespace += "-uid" }
	probe := t.creates(ctx, "probe", in, unscheduled)
	probe.UID = ""
	// The policy applies when it rejects a Binding without a UID.
	if !t.applied(ctx, probe, func(err error) bool { return err != nil && strings.Contains(err.Error(), t.ns.Name+".conformance") }) {
		t.skips("within %s, the API server did not apply a ValidatingAdmissionPolicy in a namespace that is exempt from Prebind; check that the label %s exempts a namespace", appliedTime, exemptLabel)
	}
	t.bound(ctx, t.creates(ctx, "uid", in), "A policy rejects Bindings without a UID in the namespace of the pod. "+adviceUID+
		" Use POST pods/NAME/binding: the API server removes the UID on the legacy path POST bindings.")
	return "each Binding has the UID of the pod"
}

// checkStale checks that a bind does not apply to a later pod of the same name.
func checkStale(ctx context.Context, t *trial) string {
	other := t.nodes[1]
	old := t.creates(ctx, "stale", waits, onNode(t.nodes[0]))
	t.answered(ctx, work.ReasonWaiting, old)
	t.deletes(ctx, old)
	created := time.Now()
	pod := t.creates(ctx, "stale", onNode(other))
	pod = t.bound(ctx, pod, "When a pod is deleted, drop its bind. Key pods by UID, not by name: schedule a new pod of the same name like any other pod. A stale Binding is answered with 409: do not repeat it.")
	t.on(pod, other.Name, "the deleted pod of the same name required the other node", adviceUID)
	if pod.Annotations[expectAnnotation] != "" {
		t.violates("Build the Binding from the pod that you schedule.", "the new pod has annotations of the deleted pod's Binding")
	}
	return fmt.Sprintf("the new pod was bound to %s %s after the deletion", pod.Spec.NodeName, seconds(time.Since(created)))
}

// checkVolume checks that a pod whose volume does not exist yet is bound when the volume is bound, to its node.
func checkVolume(ctx context.Context, t *trial) string {
	for _, n := range t.nodes { // Some schedulers use only nodes with the driver.
		t.must(labelNode(ctx, t.client, n.Name, nodeLabel(t.ns.Name, "volume"), set))
		t.must(patchDriver(ctx, t.client, n.Name, fmt.Sprintf(`{"name":%q,"nodeID":%q}`, t.ns.Name, n.Name)))
	}
	t.apply(ctx, "claim.yaml", "")
	pod := t.creates(ctx, "volume", usesClaim)
	var claim *corev1.PersistentVolumeClaim
	if !t.until(ctx, t.Timeout, func(ctx context.Context) (_ bool, err error) {
		claim, err = t.client.CoreV1().PersistentVolumeClaims(t.ns.Name).Get(ctx, "volume", metav1.GetOptions{})
		return err == nil && claim.Annotations[volume.AnnSelectedNode] != "", err
	}) {
		t.violates("Post the Binding of a pod with unbound claims. Prebind binds them. If your scheduler binds volumes itself, set the annotation "+volume.AnnSelectedNode+".",
			"neither the scheduler nor Prebind requested the volume of claim %s within %s%s", claim.Name, t.Timeout, t.why(ctx, pod))
	}
	t.staysUnbound(ctx, pod, provisionTime)
	t.apply(ctx, "volume.yaml", claim.UID)
	created := time.Now()
	pod = t.bound(ctx, pod, adviceRepeat)
	t.on(pod, claim.Annotations[volume.AnnSelectedNode], "the volume was requested for it", adviceStay)
	// The event of the wait can be late, so it is read at the end.
	answers, err := t.answers(ctx, pod, work.ReasonWaiting)
	t.must(err)
	who := "the scheduler waited for the volume itself"
	if len(answers) > 0 {
		who = "Prebind made the bind wait"
	}
	return fmt.Sprintf("bound to %s %s after its volume was created; %s", pod.Spec.NodeName, seconds(time.Since(created)), who)
}

// checkWorkers checks that pods that wait do not delay the bind of another pod.
func checkWorkers(ctx context.Context, t *trial) string {
	for i := range waiters {
		t.creates(ctx, fmt.Sprintf("waiter-%d", i), waits)
	}
	waiting := slices.Clone(t.created)
	t.answered(ctx, work.ReasonWaiting, waiting...)
	began := time.Now()
	pod := t.creates(ctx, "workers")
	if late := t.late(ctx, []*corev1.Pod{pod}); len(late) > 0 {
		waiting = slices.DeleteFunc(waiting, func(pod *corev1.Pod) bool { return t.count(ctx, pod, work.ReasonWaiting) == 0 })
		t.violates(adviceWorkers, "pod %s was not bound within %s, while Bindings of %d of %d other pods waited%s", pod.Name, t.Timeout, len(waiting), waiters, t.why(ctx, pod))
	}
	return fmt.Sprintf("while %d pods waited, another pod was bound in %s", waiters, seconds(time.Since(began)))
}

// checkBurst checks that the scheduler binds many pods, each once.
func checkBurst(ctx context.Context, t *trial) string {
	began := time.Now()
	for i := range t.Burst {
		t.creates(ctx, fmt.Sprintf("burst-%d", i))
	}
	if late := t.late(ctx, t.created); len(late) > 0 {
		t.violates("Check the rate limit of the client (QPS) and the number of bind workers, and that the nodes have room for the pods.",
			"%d of %d pods were bound within %s; pod %s was not bound%s", t.Burst-len(late), t.Burst, t.Timeout, late[0].Name, t.why(ctx, late[0]))
	}
	took := time.Since(began)
	return fmt.Sprintf("%d pods bound in %s (%.0f per second)", t.Burst, seconds(took), float64(t.Burst)/took.Seconds())
}
