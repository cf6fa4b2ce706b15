// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"

	"github.com/prebind/prebind/cmd/kubectl-prebind/internal/dryrun"
	"github.com/prebind/prebind/internal/work"
)

const (
	// pollInterval is the time between two looks at an object.
	pollInterval = 250 * time.Millisecond
	// requestTimeout limits the requests of one look.
	requestTimeout = 30 * time.Second
	// slowTime is the time from which on the requests of one look are slow.
	slowTime = time.Second
)

// trial is a check in progress. Its methods are the steps of checks. A step that fails ends the check, as FailNow of testing.T ends a
// test: only the goroutine of the check may call steps.
type trial struct {
	*session
	// Result is the result of the check. It has no status while the check is in progress.
	Result
	// created are the pods of the check.
	created []*corev1.Pod
	began   time.Time
	// slow is the time that slow requests took.
	slow time.Duration
}

// do runs steps until they return or one ends the check.
func (t *trial) do(steps func()) {
	var running sync.WaitGroup
	running.Go(steps)
	running.Wait()
}

// ends ends the check.
func (t *trial) ends(s Status, advice, format string, args ...any) {
	t.Status, t.Advice, t.Detail = s, advice, strings.Join(strings.Fields(fmt.Sprintf(format, args...)), " ")
	runtime.Goexit()
}

// must ends the check if there is an error.
func (t *trial) must(err error) {
	if err != nil {
		t.ends(Errored, "", "%v", forbidden(err))
	}
}

// violates ends the check: the scheduler does not conform.
func (t *trial) violates(advice, format string, args ...any) { t.ends(Fail, advice, format, args...) }

// skips ends the check: the cluster lacks something.
func (t *trial) skips(format string, args ...any) { t.ends(Skipped, "", format, args...) }

// until polls until the condition holds, and returns whether it did within the time. It repeats a condition with an error.
func (t *trial) until(ctx context.Context, limit time.Duration, condition func(ctx context.Context) (bool, error)) bool {
	var last error
	err := wait.PollUntilContextTimeout(ctx, pollInterval, limit, true, func(context.Context) (ok bool, _ error) {
		// The end of the time must not look like an error of the API server.
		ctx, cancel := context.WithTimeout(ctx, requestTimeout)
		defer cancel()
		began := time.Now()
		ok, last = condition(ctx)
		if took := time.Since(began); took > slowTime {
			t.slow += took
		}
		return ok && last == nil, nil
	})
	if err != nil && ctx.Err() != nil {
		t.must(errInterrupted)
	}
	t.must(last)
	return err == nil
}

// overload describes the overload of the cluster during the check. It is empty if less than a tenth of the time passed in slow requests.
func (t *trial) overload() string {
	passed := time.Since(t.began)
	if t.slow <= passed/10 {
		return ""
	}
	return fmt.Sprintf("the cluster is overloaded: %s of %s passed in requests of this command that took more than %s", seconds(t.slow), seconds(passed), slowTime)
}

// creates creates a pod of the check. It retries, because the namespace has no service account at first.
func (t *trial) creates(ctx context.Context, name string, options ...podOption) (created *corev1.Pod) {
	pod := t.pod(name, options...)
	t.until(ctx, requestTimeout, func(ctx context.Context) (_ bool, err error) {
		created, err = t.client.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
		return err == nil, err
	})
	t.created = append(t.created, created)
	return created
}

// deletes deletes the pods now, also pods that replaced them, and waits until they are gone.
func (t *trial) deletes(ctx context.Context, pods ...*corev1.Pod) {
	t.until(ctx, t.Timeout, func(ctx context.Context) (bool, error) {
		pods = slices.DeleteFunc(pods, func(pod *corev1.Pod) bool {
			return apierrors.IsNotFound(t.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}))
		})
		if len(pods) > 0 {
			return false, fmt.Errorf("pod %s is not deleted yet", pods[0].Name)
		}
		return true, nil
	})
}

// read returns the pod. It is a violation if the pod was replaced.
func (t *trial) read(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	now, err := t.client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && now.UID != pod.UID {
		t.violates("Bind the pod with a Binding. Do not create it again with spec.nodeName: such a pod does not pass Prebind.",
			"pod %s was deleted or replaced by another component, such as the scheduler", pod.Name)
	}
	return now, err
}

// unbound reads a pod that Prebind does not allow to be bound.
func (t *trial) unbound(ctx context.Context, pod *corev1.Pod) error {
	now, err := t.read(ctx, pod)
	if err == nil && now.Spec.NodeName != "" {
		t.violates("Bind with a Binding, and do not override the annotations of the pod under prebind.dev.",
			"pod %s was bound to %s, although Prebind has not allowed it", pod.Name, now.Spec.NodeName)
	}
	return err
}

// staysUnbound checks for the time that the pod is not bound.
func (t *trial) staysUnbound(ctx context.Context, pod *corev1.Pod, d time.Duration) {
	t.until(ctx, max(d, pollInterval), func(ctx context.Context) (bool, error) { return false, t.unbound(ctx, pod) })
}

// late waits until the pods are bound, which have one namespace. It returns those that are not bound within the time.
func (t *trial) late(ctx context.Context, pods []*corev1.Pod) (late []*corev1.Pod) {
	t.until(ctx, t.Timeout, func(ctx context.Context) (bool, error) {
		list, err := t.client.CoreV1().Pods(pods[0].Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		nodes := map[types.UID]string{}
		for _, pod := range list.Items {
			nodes[pod.UID] = pod.Spec.NodeName
		}
		late = slices.DeleteFunc(slices.Clone(pods), func(pod *corev1.Pod) bool { return nodes[pod.UID] != "" })
		return len(late) == 0, nil
	})
	return late
}

// bound waits until the pod is bound. If it is not, the advice is that of the violation.
func (t *trial) bound(ctx context.Context, pod *corev1.Pod, advice string) *corev1.Pod {
	var now *corev1.Pod
	if !t.until(ctx, t.Timeout, func(ctx context.Context) (ok bool, err error) {
		now, err = t.read(ctx, pod)
		return err == nil && now.Spec.NodeName != "", err
	}) {
		t.violates(advice, "pod %s was not bound within %s%s", pod.Name, t.Timeout, t.why(ctx, pod))
	}
	return now
}

// on checks that the pod is bound to the node.
func (t *trial) on(pod *corev1.Pod, node, why, advice string) {
	if pod.Spec.NodeName != node {
		t.violates(advice, "pod %s was bound to %s instead of %s: %s", pod.Name, pod.Spec.NodeName, node, why)
	}
}

// posted waits until the condition shows that the scheduler has posted a Binding of the pod, which stays unbound.
func (t *trial) posted(ctx context.Context, pod *corev1.Pod, condition func(ctx context.Context) (bool, error)) {
	if !t.until(ctx, t.Timeout, func(ctx context.Context) (bool, error) {
		if err := t.unbound(ctx, pod); err != nil {
			return false, err
		}
		return condition(ctx)
	}) {
		t.violates("Schedule the pod, also while other pods wait. To test one rule at a time, use --run.",
			"the scheduler posted no Binding for pod %s within %s%s", pod.Name, t.Timeout, t.why(ctx, pod))
	}
}

// answered waits until an event shows that Prebind has answered a Binding of one of the pods in this way.
func (t *trial) answered(ctx context.Context, reason string, pods ...*corev1.Pod) {
	t.posted(ctx, pods[0], func(ctx context.Context) (bool, error) {
		for _, pod := range pods {
			if nodes, err := t.answers(ctx, pod, reason); err != nil || len(nodes) > 0 {
				return err == nil, err
			}
		}
		return false, nil
	})
}

// answers returns the node of each answer with the reason that events of the pod show. Events combine repeated answers: they show the first
// two on each node by each replica for each version of the pod.
func (t *trial) answers(ctx context.Context, pod *corev1.Pod, reason string) (nodes []string, err error) {
	all, err := t.events(ctx, pod)
	for _, e := range all {
		if e.Reason != reason {
			continue
		}
		node := ""
		if e.Related != nil && e.Related.Kind == "Node" { // Some waits name another object.
			node = e.Related.Name
		}
		nodes = append(nodes, node)
		if e.Series != nil {
			nodes = append(nodes, node)
		}
	}
	return nodes, err
}

// count returns the number of those answers.
func (t *trial) count(ctx context.Context, pod *corev1.Pod, reason string) int {
	nodes, err := t.answers(ctx, pod, reason)
	t.must(err)
	return len(nodes)
}

// events returns the events of the pod. The API server sorts them by name, which ends with the time.
func (t *trial) events(ctx context.Context, pod *corev1.Pod) ([]eventsv1.Event, error) {
	list, err := t.client.EventsV1().Events(pod.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing events: %w", err)
	}
	return slices.DeleteFunc(list.Items, func(e eventsv1.Event) bool { return e.Regarding.UID != pod.UID }), nil
}

// warnings returns the reasons of the warnings about the pod that are not from Prebind.
func (t *trial) warnings(ctx context.Context, pod *corev1.Pod) string {
	all, err := t.events(ctx, pod)
	t.must(err)
	var found []string
	for _, e := range all {
		if e.Type == corev1.EventTypeWarning && e.Reason != work.ReasonRefused && e.Reason != work.ReasonWaiting && !slices.Contains(found, e.Reason) {
			found = append(found, e.Reason)
		}
	}
	return strings.Join(found, ", ")
}

// why returns the conditions that are false, such as PodScheduled, and the last events of a pod that is not bound, as the end of a sentence.
func (t *trial) why(ctx context.Context, pod *corev1.Pod) (why string) {
	// The message is useful without the conditions.
	if now, err := t.client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{}); err == nil {
		for _, c := range now.Status.Conditions {
			if c.Status == corev1.ConditionFalse {
				why += fmt.Sprintf("; its condition %s is False (%s): %s", c.Type, c.Reason, c.Message)
			}
		}
	}
	all, err := t.events(ctx, pod)
	if err != nil {
		return why + "; " + err.Error()
	}
	var notes []string
	for _, e := range all[max(len(all)-2, 0):] {
		notes = append(notes, e.Reason+": "+e.Note)
	}
	if len(notes) > 0 {
		why += "; its last events: " + strings.Join(notes, " | ")
	}
	return why
}

const (
	// paceTime is the time in which Bindings of a rejected pod are counted, and mostPosts their limit. A rejection takes 1 s, so backoff that
	// doubles from 1 s posts 5, backoff that grows by half posts 7, and a scheduler that tries again after each second posts 15.
	paceTime  = 30 * time.Second
	mostPosts = 7
)

// backsOff observes the Bindings of the rejected pod for a while. A scheduler without backoff that grows violates the contract.
func (t *trial) backsOff(ctx context.Context, pod *corev1.Pod) {
	t.answered(ctx, work.ReasonRefused, pod)
	began, seen := time.Now(), 0
	looped := t.until(ctx, paceTime, func(ctx context.Context) (bool, error) {
		nodes, err := t.answers(ctx, pod, work.ReasonRefused)
		if err == nil {
			err = t.unbound(ctx, pod)
		}
		if err == nil && len(nodes) > seen {
			seen = len(nodes)
			err = t.touch(ctx, pod, seen)
		}
		if err == nil { // Slow Bindings look like backoff, so one is measured, too.
			err = t.client.CoreV1().Pods(t.ns.Name).Bind(ctx, dryrun.Binding(t.probe, t.nodes[0].Name, nil), dryrun.DryRun)
		}
		return seen > mostPosts, err
	})
	if looped {
		t.violates("After a rejection, put the pod back into the queue with backoff that grows, for example from 1 s to 30 s, as for pods that do not fit. Do not repeat the Binding in a loop.",
			"the scheduler posted %d Bindings of the rejected pod in %s", seen, seconds(time.Since(began)))
	}
	if slow := t.overload(); slow != "" {
		t.ends(NoResult, "", "%s", slow)
	}
}

// touch changes the status of the pod. Otherwise, events would show only the first two answers. Schedulers ignore the status.
func (t *trial) touch(ctx context.Context, pod *corev1.Pod, n int) error {
	patch := fmt.Appendf(nil, `{"status":{"conditions":[{"type":"conformance.prebind.dev/answers","status":"True","message":"%d"}]}}`, n)
	_, err := t.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}

// applied waits until the API server answers a dry-run Binding of the probe in the way that a new admission configuration causes.
func (t *trial) applied(ctx context.Context, probe *corev1.Pod, answer func(err error) bool) bool {
	return t.until(ctx, appliedTime, func(ctx context.Context) (bool, error) {
		return answer(dryrun.Post(ctx, t.client, dryrun.Binding(probe, t.nodes[0].Name, nil), dryrun.DryRun)), nil
	})
}
