// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/volume"

	"github.com/prebind/prebind/binder/work"
	"github.com/prebind/prebind/cmd/kubectl-prebind/internal/dryrun"
	"github.com/prebind/prebind/webhook"
)

// Names of PreBind plugins that checks use.
const (
	nodeState     = "node-state"
	device        = "device"
	volumeBinding = "volumebinding"
)

const (
	// deviceAnnotation requests a device of a resource that no node has. Prebind does not check that devices exist.
	deviceAnnotation = "device.prebind.dev/conformance"
	// timeoutAnnotation is the budget of a bind.
	timeoutAnnotation = "binder.prebind.dev/timeout"
	// expectAnnotation and waitAnnotation make a pod wait in Prebind for a label of its node.
	expectAnnotation = "node-state.prebind.dev/expect"
	waitAnnotation   = "node-state.prebind.dev/wait"
	// ownAnnotation is an annotation that the scheduler must not remove.
	ownAnnotation = "conformance.prebind.dev/own"
	// exemptLabel exempts a namespace from Prebind in the shipped webhook configuration.
	exemptLabel = "prebind.dev/exempt"
	// roleLabel marks the pods that hold a device, and burstLabel those of the burst.
	roleLabel  = "conformance.prebind.dev/role"
	burstLabel = "conformance.prebind.dev/burst"
)

const (
	// settles is the time in which a scheduler that reacts at once has done so.
	settles = 2 * time.Second
	// appliedTime is the time in which the API server applies a new admission configuration.
	appliedTime = time.Minute
	// provisionTime is the time from the request for a volume to its creation. It is longer than the time after which Prebind
	// reports a wait.
	provisionTime = 8 * time.Second
	// rollbackTime is the time in which Prebind rolls back the bind of a deleted pod.
	rollbackTime = 30 * time.Second
	// longestCall is the maximum of timeoutSeconds in a webhook configuration.
	longestCall = 30 * time.Second
	// refused is the number of pods of the check refused. Some schedulers try only some of them again.
	refused = 6
	// waiters is the number of pods that wait in the check workers. It is above the usual number of bind workers.
	waiters = 12
)

// Texts of advice.
const (
	adviceRepeat = "After a 429, keep the node for the pod and post the same Binding again after Retry-After. client-go does it ten times, unless the client sets MaxRetries(0). " + adviceTimeout
	adviceStay   = "A 429 is not a failure: keep the node for the pod, and post the same Binding again after Retry-After. Or the client that binds has a timeout (rest.Config.Timeout), and the scheduler never gets the 429. " + adviceTimeout
	// adviceTimeout is for a scheduler that gets an error of its client instead of the answer.
	adviceTimeout = "Leave rest.Config.Timeout at 0 (" + guide + "#time-limits)."
	adviceAgain   = "After a refusal, release the node and schedule the pod again, with backoff, as a pod that does not fit. Do not drop the pod, and do not mark it as failed."
	adviceUID     = "Set metadata.uid of the Binding to the UID of the pod that you scheduled."
)

// check tests one rule of the contract.
type check struct {
	name string
	// rule is the rule in a few words.
	rule string
	// section is the anchor of the rule in docs/for-schedulers.md.
	section string
	// plugins are the PreBind plugins that the check needs, and nodes the number of nodes.
	plugins []string
	nodes   int
	// needs are permissions in addition to those of every run.
	needs []permission
	// alone runs the check after the others.
	alone bool
	// run makes the check, and returns what it has observed.
	run func(ctx context.Context, t *trial) string
}

// checks returns all checks in the order of the report.
func checks() []check {
	status := []permission{{"pods/status", "patch"}}
	policies := []permission{{"validatingadmissionpolicies.admissionregistration.k8s.io", "create"}, {"validatingadmissionpolicybindings.admissionregistration.k8s.io", "create"}}
	webhooks := []permission{{"validatingwebhookconfigurations.admissionregistration.k8s.io", "create delete"}}
	volumes := []permission{
		{"persistentvolumeclaims", "create get"}, {"persistentvolumes", "create"},
		{"storageclasses.storage.k8s.io", "create"}, {"csinodes.storage.k8s.io", "list patch"},
	}
	return []check{
		{name: "bind", rule: "Bind a pod to the node that it requires.", section: "answers", run: checkBind},
		{name: "annotations", rule: "Keep the annotations that Prebind adds.", section: "request-devices-plugins-and-a-budget", run: checkAnnotations},
		{name: "binding-annotations", rule: "Repeat a Binding with the same annotations.", section: "repeat-a-binding", run: checkBindingAnnotations},
		{name: "uid", rule: "Set the UID of the pod in the Binding.", section: "set-the-uid", needs: policies, run: checkUID},
		{name: "wait", rule: "Repeat a Binding that has to wait (429).", section: "answers", plugins: []string{nodeState}, run: checkWait},
		{name: "refused", rule: "Try again after a refusal (403), with backoff.", section: "answers", plugins: []string{device}, nodes: 2, needs: status, run: checkRefused},
		{name: "invalid", rule: "Do not repeat an invalid Binding (422) in a loop.", section: "answers", needs: status, run: checkInvalid},
		{name: "internal", rule: "Try again after an internal error (500).", section: "errors-that-are-not-from-prebind", plugins: []string{device}, needs: webhooks, run: checkInternal},
		{name: "stale", rule: "Drop the bind of a deleted pod.", section: "set-the-uid", plugins: []string{nodeState}, run: checkStale},
		{name: "volume", rule: "Keep the node while volumes are prepared.", section: "repeat-a-binding", plugins: []string{volumeBinding}, needs: volumes, run: checkVolume},
		{name: "rollback", rule: "Release everything when a waiting pod is deleted.", section: "repeat-a-binding", plugins: []string{device, volumeBinding}, needs: volumes, run: checkRollback},
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

// choose returns the checks of a run: the first check, and those that the expression matches. It returns an error if the
// expression matches no check.
func choose(names *regexp.Regexp) ([]check, error) {
	var chosen []check
	var all []string
	matches := false
	for i, c := range checks() {
		all = append(all, c.name)
		match := names == nil || names.MatchString(c.name)
		matches = matches || match
		if match || i == 0 {
			chosen = append(chosen, c)
		}
	}
	if !matches {
		return nil, fmt.Errorf("--run: no check matches %q; the checks are %s", names, strings.Join(all, ", "))
	}
	return chosen, nil
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
	if len(t.announced(ctx, t.nodes[0].Name)) == 0 {
		t.end(skip("no mutator adds annotations of the node, so it cannot be observed that binds pass Prebind; switch on the mutator topology"))
	}
	pod := t.bound(ctx, t.creates(ctx, "annotations", annotation(ownAnnotation, "kept")), "Bind the pod.")
	want := t.announced(ctx, pod.Spec.NodeName)
	count := len(want)
	want[ownAnnotation] = "kept"
	// A scheduler that writes its own copy of the pod after the bind removes annotations.
	t.until(ctx, settles, func(ctx context.Context) (bool, error) {
		now, err := t.read(ctx, pod)
		if err != nil {
			return false, err
		}
		var wrong []string
		for _, key := range slices.Sorted(maps.Keys(want)) {
			if got, ok := now.Annotations[key]; !ok {
				wrong = append(wrong, key+" is missing")
			} else if got != want[key] {
				wrong = append(wrong, fmt.Sprintf("%s is %q instead of %q", key, got, want[key]))
			}
		}
		if len(wrong) > 0 {
			t.violates("Bind with a Binding (POST pods/NAME/binding). Do not write the annotations of the pod after the bind from a copy that was read before it.",
				"pod %s on node %s: %s", pod.Name, pod.Spec.NodeName, strings.Join(wrong, ", "))
		}
		return false, nil
	})
	return fmt.Sprintf("%d annotations equal those that Prebind announces for node %s", count, pod.Spec.NodeName)
}

// announced returns the annotations that Prebind adds to a pod on the node, and that depend on the node only.
func (t *trial) announced(ctx context.Context, node string) map[string]string {
	x, err := t.explain(ctx, node, nil)
	t.must(err)
	return ofNode(x.Annotations)
}

func ofNode(all map[string]string) map[string]string {
	found := map[string]string{}
	for key, value := range all {
		if strings.HasPrefix(key, "topology.prebind.dev/") || strings.HasPrefix(key, "node-info.prebind.dev/") {
			found[key] = value
		}
	}
	return found
}

// checkBindingAnnotations checks that an annotation of the Binding reaches the pod, also if the Binding has to be repeated.
func checkBindingAnnotations(ctx context.Context, t *trial) string {
	key := t.BindingAnnotation
	if key == "" {
		t.end(skip("name an annotation that your scheduler sets on every Binding with --binding-annotation"))
	}
	var pod *corev1.Pod
	if slices.Contains(t.plugins, nodeState) {
		pod = t.creates(ctx, "binding-annotations", waits)
		t.release(ctx, pod, t.answered(ctx, pod, work.ReasonWaiting)[0].node)
	} else {
		pod = t.creates(ctx, "binding-annotations")
	}
	pod = t.bound(ctx, pod, adviceRepeat)
	value, ok := pod.Annotations[key]
	if !ok {
		t.violates("Post the same annotations with every call for a bind. client-go does it. If your scheduler builds the Binding again, add its annotations again.",
			"the bound pod lacks the annotation %s, which the scheduler should set on the Binding", key)
	}
	return fmt.Sprintf("the pod has %s=%q", key, value)
}

// waits makes the pod wait until release.
func waits(pod *corev1.Pod) {
	pod.Annotations[expectAnnotation], pod.Annotations[waitAnnotation] = releaseLabel(pod.Namespace, pod.Name), (maxWait + time.Minute).String()
}

// release ends the wait on the node: the held call, or the next one, binds the pod.
func (t *trial) release(ctx context.Context, pod *corev1.Pod, node string) {
	t.must(labelNode(ctx, t.client, node, releaseLabel(pod.Namespace, pod.Name), new("true")))
}

// checkUID checks that the Binding has the UID of the pod. Prebind adds a missing UID, so it cannot be observed later. The check
// therefore uses a second namespace, which is exempt from Prebind, and a policy that rejects Bindings without a UID there.
func checkUID(ctx context.Context, t *trial) string {
	t.apply(ctx, "uid.yaml", values{})
	in := func(pod *corev1.Pod) { pod.Namespace += "-uid" }
	probe := t.creates(ctx, "probe", in, unscheduled)
	probe.UID = ""
	// The policy applies when it rejects a Binding without a UID.
	if !t.until(ctx, appliedTime, func(ctx context.Context) (bool, error) {
		err := dryrun.Post(ctx, t.client, dryrun.Binding(probe, t.nodes[0].Name, nil), dryrun.DryRun)
		return err != nil && strings.Contains(err.Error(), t.ns.Name+".conformance"), nil
	}) {
		t.end(skip("within %s, the API server did not apply a ValidatingAdmissionPolicy in a namespace that is exempt from Prebind; check that the label %s exempts a namespace", appliedTime, exemptLabel))
	}
	pod := t.creates(ctx, "uid", in)
	if !t.until(ctx, t.Timeout/2, func(ctx context.Context) (bool, error) {
		now, err := t.read(ctx, pod)
		return err == nil && now.Spec.NodeName != "", err
	}) {
		t.violates(adviceUID+" Use POST pods/NAME/binding: the API server removes the UID on the legacy path POST bindings.",
			"the pod was not bound in a namespace where a policy rejects Bindings without a UID%s", t.why(ctx, pod))
	}
	return "each Binding has the UID of the pod"
}

// checkWait checks that the scheduler repeats a Binding that has to wait, and stays on the node.
func checkWait(ctx context.Context, t *trial) string {
	pod := t.creates(ctx, "wait", waits)
	began := time.Now()
	t.answered(ctx, pod, work.ReasonWaiting)
	t.staysUnbound(ctx, pod, t.Wait-time.Since(began))
	waited := time.Since(began)
	warnings := t.warnings(ctx, pod)
	all, err := t.events(ctx, pod)
	t.must(err)
	nodes := nodesOf(sightings(all, work.ReasonWaiting))
	if len(nodes) > 1 {
		t.violates(adviceStay, "the pod waited on %s, and the scheduler posted Bindings to other nodes in the meantime: %s", nodes[0], strings.Join(nodes[1:], ", "))
	}
	if warnings != "" && t.NoFailureEvents {
		t.violates(adviceStay, "the scheduler reported the waiting pod as a failure: %s", warnings)
	}
	t.release(ctx, pod, nodes[0])
	released := time.Now()
	t.on(t.bound(ctx, pod, adviceRepeat), nodes[0], "it waited there", adviceStay)
	detail := fmt.Sprintf("waited %s, then bound to %s %s later", seconds(waited), nodes[0], seconds(time.Since(released)))
	if t.Wait < longestCall {
		detail += fmt.Sprintf("; --wait is shorter than the longest call, %s, so the scheduler may have got no 429", longestCall)
	}
	if warnings != "" {
		detail += "; the scheduler reported " + warnings
	}
	return detail
}

// checkRefused checks that the scheduler tries again after a refusal, with backoff, and binds the pods to another node.
func checkRefused(ctx context.Context, t *trial) string {
	var devices []string
	for i := range refused {
		devices = append(devices, fmt.Sprintf("%s-%d", t.ns.Name, i))
	}
	nodes := t.nodes[:2]
	holders := map[string]*corev1.Pod{}
	for i, n := range nodes {
		holder := t.creates(ctx, fmt.Sprintf("holder-%d", i), unscheduled, label(roleLabel, "holder"), annotation(deviceAnnotation, strings.Join(devices, ",")))
		t.must(t.client.CoreV1().Pods(t.ns.Name).Bind(ctx, dryrun.Binding(holder, n.Name, nil), metav1.CreateOptions{}))
		holders[n.Name] = holder
	}
	var pods []*corev1.Pod
	for i, id := range devices {
		pods = append(pods, t.creates(ctx, fmt.Sprintf("refused-%d", i), annotation(deviceAnnotation, id), onNodes(nodes, map[string]string{roleLabel: "holder"})))
	}
	refusals := t.refusals(ctx, pods[0])
	for _, pod := range pods[1:] {
		t.answered(ctx, pod, work.ReasonRefused)
	}
	free := nodes[0].Name
	if free == refusals[len(refusals)-1].node {
		free = nodes[1].Name
	}
	t.deletes(ctx, holders[free])
	released := time.Now()
	for _, pod := range pods {
		t.bound(ctx, pod, adviceAgain+" Try other nodes too: node "+free+" was free.")
	}
	return fmt.Sprintf("refused on %s (403) with backoff, then all %d pods were bound %s after their devices were free on %s",
		strings.Join(nodesOf(refusals), " and "), refused, seconds(time.Since(released)), free)
}

// checkInvalid checks that the scheduler does not repeat a Binding with an invalid annotation in a loop.
func checkInvalid(ctx context.Context, t *trial) string {
	pod := t.creates(ctx, "invalid", annotation(timeoutAnnotation, "soon"))
	t.refusals(ctx, pod)
	return "refused as invalid (422), and not repeated in a loop"
}

// checkInternal checks that the scheduler tries a pod again after an internal error, on the only node that the pod allows. A webhook
// that the API server cannot call makes the error after Prebind has allowed the bind.
func checkInternal(ctx context.Context, t *trial) string {
	t.apply(ctx, "internal.yaml", values{})
	probe := t.creates(ctx, "internal-probe", unscheduled)
	if !t.until(ctx, appliedTime, func(ctx context.Context) (bool, error) {
		return apierrors.IsInternalError(dryrun.Post(ctx, t.client, dryrun.Binding(probe, t.nodes[0].Name, nil), dryrun.DryRun)), nil
	}) {
		t.end(skip("within %s, the API server did not apply a ValidatingWebhookConfiguration", appliedTime))
	}
	id := t.ns.Name + "-internal"
	pod := t.creates(ctx, "internal", onNode(t.nodes[0]), annotation(deviceAnnotation, id))
	// Prebind reserves the device with the first Binding.
	t.posted(ctx, pod, func(ctx context.Context) (bool, error) { return t.deviceHeld(ctx, t.nodes[0].Name, id) })
	t.staysUnbound(ctx, pod, settles)
	t.must(t.client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Delete(ctx, t.ns.Name+".conformance.prebind.dev", metav1.DeleteOptions{}))
	ended := time.Now()
	t.bound(ctx, pod, "After an internal error, release the node and schedule the pod again, with backoff. Do not exclude the node: it is rarely the cause.")
	return fmt.Sprintf("bound %s after the end of the errors (500)", seconds(time.Since(ended)))
}

// checkStale checks that a bind does not apply to a later pod of the same name.
func checkStale(ctx context.Context, t *trial) string {
	other := t.nodes[len(t.nodes)-1]
	old := t.creates(ctx, "stale", waits, onNode(t.nodes[0]))
	t.answered(ctx, old, work.ReasonWaiting)
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

// claims creates a claim, and a pod that uses it. It returns the pod and the node for which the volume is requested.
func (t *trial) claims(ctx context.Context, name string, options ...podOption) (pod *corev1.Pod, claim *corev1.PersistentVolumeClaim, node string) {
	for _, n := range t.nodes { // Some schedulers use only nodes with the driver.
		t.must(setDriver(ctx, t.client, n.Name, t.ns.Name, false))
	}
	t.apply(ctx, "claim.yaml", values{Name: name})
	pod = t.creates(ctx, name, append(options, usesClaim(name))...)
	if !t.until(ctx, t.Timeout, func(ctx context.Context) (_ bool, err error) {
		if claim, err = t.client.CoreV1().PersistentVolumeClaims(t.ns.Name).Get(ctx, name, metav1.GetOptions{}); err == nil {
			node = claim.Annotations[volume.AnnSelectedNode]
		}
		return node != "", err
	}) {
		t.violates("Post the Binding of a pod with unbound claims. Prebind binds them. If your scheduler binds volumes itself, set the annotation "+volume.AnnSelectedNode+".",
			"neither the scheduler nor Prebind requested the volume of claim %s within %s%s", name, t.Timeout, t.why(ctx, pod))
	}
	return pod, claim, node
}

// checkVolume checks that a pod whose volume does not exist yet is bound when the volume is bound, to its node.
func checkVolume(ctx context.Context, t *trial) string {
	pod, claim, node := t.claims(ctx, "volume")
	t.staysUnbound(ctx, pod, provisionTime)
	list, err := t.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + node})
	t.must(err)
	if len(list.Items) == 0 {
		t.violates("Bind to existing nodes.", "the volume was requested for node %s, which does not exist", node)
	}
	t.apply(ctx, "volume.yaml", values{Name: claim.Name, UID: string(claim.UID), Hostname: list.Items[0].Labels[corev1.LabelHostname]})
	created := time.Now()
	pod = t.bound(ctx, pod, adviceRepeat)
	t.on(pod, node, "the volume is there", adviceStay)
	// The event of the wait can be late, so it is read at the end.
	all, err := t.events(ctx, pod)
	t.must(err)
	who := "the scheduler waited for the volume itself"
	if len(sightings(all, work.ReasonWaiting)) > 0 {
		who = "Prebind made the bind wait"
	}
	return fmt.Sprintf("bound to %s %s after its volume was created; %s", node, seconds(time.Since(created)), who)
}

// checkRollback checks that the deletion of a waiting pod leaves neither a reservation nor an attempt.
func checkRollback(ctx context.Context, t *trial) string {
	id := t.ns.Name + "-rollback"
	pod, _, node := t.claims(ctx, "rollback", annotation(deviceAnnotation, id))
	held := func(ctx context.Context) (bool, error) { return t.deviceHeld(ctx, node, id) }
	// Prebind holds the device while the bind waits for the volume.
	by := "the Binding of the scheduler"
	if !t.until(ctx, provisionTime, held) {
		by = "a Binding of this command, because the scheduler waits for volumes itself"
		t.deletes(ctx, pod)
		pod = t.creates(ctx, "rollback", unscheduled, usesClaim("rollback"), annotation(deviceAnnotation, id))
		// The call ends with an error when the pod is deleted.
		go func() {
			_ = t.client.CoreV1().Pods(t.ns.Name).Bind(ctx, dryrun.Binding(pod, node, nil), metav1.CreateOptions{})
		}()
		if !t.until(ctx, rollbackTime, held) {
			t.violates("Check the log of Prebind. This is not a problem of the scheduler.", "Prebind holds no device while the bind waits for its volume")
		}
	}
	t.deletes(ctx, pod)
	deleted := time.Now()
	records, err := t.allowed(ctx, "list", "configmaps")
	t.must(err)
	if !t.until(ctx, rollbackTime, func(ctx context.Context) (bool, error) {
		held, err := held(ctx)
		if held || err != nil || !records {
			return !held, err
		}
		left, err := t.recorded(ctx, pod.UID)
		return !left, err
	}) {
		t.violates("Stop repeating the Binding of a deleted pod. If your scheduler does, check the log of Prebind.",
			"%s after the deletion of the pod, Prebind still holds its device on node %s", rollbackTime, node)
	}
	detail := fmt.Sprintf("the device was free %s after the deletion of the waiting pod (%s)", seconds(time.Since(deleted)), by)
	if !records {
		detail += "; without permission to list ConfigMaps, the records of Prebind were not read"
	}
	return detail
}

// recorded returns whether a record of Prebind contains the pod. Only Prebind's own namespace has records. It reads all
// namespaces, so that the user does not have to name this one.
func (t *trial) recorded(ctx context.Context, uid types.UID) (bool, error) {
	list, err := t.client.CoreV1().ConfigMaps(metav1.NamespaceAll).List(ctx, metav1.ListOptions{LabelSelector: managedBy + "=prebind"})
	if err != nil {
		return false, fmt.Errorf("listing the records of Prebind: %w", err)
	}
	return slices.ContainsFunc(list.Items, func(m corev1.ConfigMap) bool { return strings.Contains(fmt.Sprint(m.Data), string(uid)) }), nil
}

// checkWorkers checks that pods that wait do not delay the bind of another pod.
func checkWorkers(ctx context.Context, t *trial) string {
	var waiting []*corev1.Pod
	for i := range waiters {
		waiting = append(waiting, t.creates(ctx, fmt.Sprintf("waiter-%d", i), waits))
	}
	t.answered(ctx, waiting[0], work.ReasonWaiting)
	began := time.Now()
	t.bound(ctx, t.creates(ctx, "workers"), fmt.Sprintf("While %d pods wait, other pods must be bound. Bind each pod in its own goroutine, use more bind workers, or repeat waiting Bindings from a delayed queue. "+
		"If your scheduler already uses goroutines, look for a limit of binds in progress, for a lock that it holds while it binds, and for the rate limit of its client (QPS).", waiters))
	detail := fmt.Sprintf("while %d pods waited, another pod was bound in %s", waiters, seconds(time.Since(began)))
	for _, pod := range waiting {
		t.deletes(ctx, pod)
	}
	return detail
}

// checkBurst checks that the scheduler binds many pods, each once.
func checkBurst(ctx context.Context, t *trial) string {
	before, counted := t.calls(ctx)
	pods, detail := t.bindsMany(ctx)
	missing := slices.DeleteFunc(pods, func(pod corev1.Pod) bool { return len(ofNode(pod.Annotations)) > 0 })
	if len(missing) > 0 && len(t.announced(ctx, t.nodes[0].Name)) > 0 {
		t.violates("Bind each pod with a Binding.", "%d of %d pods lack the annotations of Prebind, such as %s", len(missing), t.Burst, missing[0].Name)
	}
	if after, ok := t.calls(ctx); ok && counted {
		return detail + fmt.Sprintf("; %.2f calls of Prebind per pod in the whole cluster", float64(after-before)/float64(t.Burst))
	}
	return detail + "; calls per pod unknown without permission to get /metrics of the API server"
}

// bindsMany creates the pods of the burst, and waits until they are bound.
func (t *trial) bindsMany(ctx context.Context) (pods []corev1.Pod, detail string) {
	began := time.Now()
	nodes := map[types.UID]string{}
	for i := range t.Burst {
		nodes[t.creates(ctx, fmt.Sprintf("burst-%d", i), label(burstLabel, "yes")).UID] = ""
	}
	var seen []boundPod
	if t.until(ctx, t.Timeout, func(ctx context.Context) (bool, error) {
		list, err := t.client.CoreV1().Pods(t.ns.Name).List(ctx, metav1.ListOptions{LabelSelector: burstLabel + "=yes"})
		if err != nil {
			return false, err
		}
		pods = list.Items
		for _, pod := range pods {
			node, ours := nodes[pod.UID]
			switch {
			case !ours:
				t.violates("Bind with a Binding. Do not create pods again with spec.nodeName.", "pod %s was replaced by another pod", pod.Name)
			case node == "" && pod.Spec.NodeName != "":
				seen = append(seen, boundPod{pod.Name, time.Since(began)})
				nodes[pod.UID] = pod.Spec.NodeName
			case node != pod.Spec.NodeName:
				t.violates("Bind each pod once.", "pod %s was bound to %s and to %s", pod.Name, node, pod.Spec.NodeName)
			}
		}
		return len(seen) == t.Burst, nil
	}) {
		return pods, fmt.Sprintf("%d pods bound%s", t.Burst, rateOf(seen, t.Burst))
	}
	late := ""
	if i := slices.IndexFunc(pods, func(pod corev1.Pod) bool { return pod.Spec.NodeName == "" }); i >= 0 {
		late = fmt.Sprintf("; pod %s was not bound%s", pods[i].Name, t.why(ctx, &pods[i]))
	}
	t.violates("Check the rate limit of the client (QPS) and the number of bind workers, and that the nodes have room for the pods.",
		"%d of %d pods were bound within %s%s%s", len(seen), t.Burst, t.Timeout, rateOf(seen, t.Burst), late)
	return nil, ""
}

// boundPod is a pod of the burst, with the time until it was bound.
type boundPod struct {
	name  string
	after time.Duration
}

// rateOf returns when 90 % of the pods of the burst were bound, and when the last one, as the end of a sentence. The pods
// are in the order in which they were bound. It is empty if fewer were bound.
func rateOf(seen []boundPod, burst int) string {
	most := (9*burst + 9) / 10
	if len(seen) < most {
		return ""
	}
	after := seen[most-1].after
	text := fmt.Sprintf(", 90 %% in %s (%.0f per second)", seconds(after), float64(most)/after.Seconds())
	if len(seen) == burst {
		last := seen[len(seen)-1]
		text += fmt.Sprintf(", the last (%s) after %s", last.name, seconds(last.after))
	}
	return text
}

// calls returns the number of calls of Prebind that the API server has made. It is false if that is unknown.
func (t *trial) calls(ctx context.Context) (int, bool) {
	metrics, err := t.client.CoreV1().RESTClient().Get().AbsPath("/metrics").Do(ctx).Raw()
	return countCalls(string(metrics)), err == nil
}

// countCalls adds up the calls of Prebind in the metrics of the API server.
func countCalls(metrics string) int {
	sum := 0.0
	for line := range strings.Lines(metrics) {
		if strings.HasPrefix(line, "apiserver_admission_webhook_admission_duration_seconds_count{") && strings.Contains(line, `name="`+webhook.Name+`"`) {
			value, _ := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndex(line, " ")+1:]), 64)
			sum += value
		}
	}
	return int(sum)
}
