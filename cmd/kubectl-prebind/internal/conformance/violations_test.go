// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"github.com/prebind/prebind/cmd/kubectl-prebind/internal/dryrun"
	"github.com/prebind/prebind/internal/work"
	"github.com/prebind/prebind/test/fakeapi"
	"github.com/prebind/prebind/test/gen"
)

// scheduler is a scheduler, with the answers of Prebind to its Bindings. The zero value conforms, except that it has no backoff.
type scheduler struct {
	client *fakeapi.Clientset
	// backoff is the time between the nth rejection and the next Binding.
	backoff func(n int) time.Duration
	// givesUp drops a pod after a 429.
	givesUp bool
	// moves posts the Binding to another node after a 429.
	moves bool
	// drops forgets all rejected pods but the first one.
	drops bool
	// stays posts the Binding of a rejected pod to the same node again.
	stays bool
	// replaces creates a pod again with spec.nodeName.
	replaces bool
	// byName binds a pod to the node of an earlier pod of the same name, which is node-1.
	byName bool
	// warns reports a warning about a pod that waits.
	warns bool
	// never is a pod for which Prebind rejects the only Binding.
	never string
	// workers limits the binds in progress. Nil means no limit.
	workers chan struct{}
	// seen is the number of pods so far. Pods that are created together are scheduled in the reverse order.
	seen int
}

// doubles is the backoff of kube-scheduler, with the second that a rejection takes.
func doubles(n int) time.Duration { return time.Second + min(time.Second<<n, 30*time.Second) }

func every(d time.Duration) func(int) time.Duration { return func(int) time.Duration { return d } }

// schedule binds the pod, or tries until the context ends.
func (s *scheduler) schedule(ctx context.Context, pod *corev1.Pod) {
	if s.workers != nil {
		select {
		case s.workers <- struct{}{}:
			defer func() { <-s.workers }()
		case <-ctx.Done():
			return
		}
	}
	_, waits := pod.Annotations[expectAnnotation]
	switch {
	case s.replaces:
		pods := s.client.CoreV1().Pods(pod.Namespace)
		_ = pods.Delete(ctx, pod.Name, metav1.DeleteOptions{})
		again := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}, Spec: corev1.PodSpec{NodeName: "node-1"}}
		_, _ = pods.Create(ctx, again, metav1.CreateOptions{})
	case pod.Name == s.never:
		s.answer(ctx, pod, work.ReasonRefused, "node-1")
	case waits:
		s.answer(ctx, pod, work.ReasonWaiting, "node-1")
		if s.warns {
			s.answer(ctx, pod, "FailedScheduling", "node-1")
		}
		if s.givesUp {
			return
		}
		if s.moves {
			s.answer(ctx, pod, work.ReasonWaiting, "node-2")
		}
		for sleep(ctx, time.Second) {
			if node, err := s.client.CoreV1().Nodes().Get(ctx, "node-1", metav1.GetOptions{}); err == nil && node.Labels[nodeLabel(pod.Namespace, pod.Name)] != "" {
				s.bind(ctx, pod, "node-1")
				return
			}
		}
	case pod.Annotations[deviceAnnotation] != "" || pod.Annotations["binder.prebind.dev/timeout"] != "":
		s.retry(ctx, pod)
	default:
		node := nodeOf(pod)
		if s.byName {
			node = "node-1"
		}
		s.bind(ctx, pod, node)
	}
}

// nodeOf returns the node for the pod.
func nodeOf(pod *corev1.Pod) string {
	return cmp.Or(pod.Spec.NodeSelector[corev1.LabelHostname], "node-1")
}

// retry posts Bindings until one is allowed. One with an invalid annotation never is, and one with a device only on node-2.
func (s *scheduler) retry(ctx context.Context, pod *corev1.Pod) {
	for n := 0; ; n++ {
		node := "node-1"
		if other, err := s.client.CoreV1().Nodes().Get(ctx, "node-2", metav1.GetOptions{}); err == nil && !s.stays {
			for key := range pod.Spec.NodeSelector {
				if other.Labels[key] != "" {
					node = other.Name
				}
			}
		}
		if node == "node-2" {
			s.bind(ctx, pod, node)
			return
		}
		s.answer(ctx, pod, work.ReasonRefused, node)
		if s.drops && !strings.HasSuffix(pod.Name, "-0") || !sleep(ctx, s.backoff(n)) {
			return
		}
	}
}

// sleep returns false if the context ended.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// answer writes the event about an answer of Prebind.
func (s *scheduler) answer(ctx context.Context, pod *corev1.Pod, reason, node string) {
	e := event(reason, node, time.Now())
	e.Namespace, e.Name = pod.Namespace, fmt.Sprintf("%s.%d.%s.%s", pod.Name, time.Now().UnixNano(), node, reason)
	e.Regarding = corev1.ObjectReference{Kind: "Pod", Name: pod.Name, UID: pod.UID}
	_, _ = s.client.EventsV1().Events(pod.Namespace).Create(ctx, &e, metav1.CreateOptions{})
}

// event returns an event about the node.
func event(reason, node string, at time.Time) eventsv1.Event {
	return eventsv1.Event{
		Type: corev1.EventTypeWarning, Reason: reason, Note: "start-limit: full", EventTime: metav1.NewMicroTime(at),
		Related: &corev1.ObjectReference{Kind: "Node", Name: node},
	}
}

func (s *scheduler) bind(ctx context.Context, pod *corev1.Pod, node string) {
	_ = s.client.CoreV1().Pods(pod.Namespace).Bind(ctx, dryrun.Binding(pod, node, nil), metav1.CreateOptions{})
}

// react makes the fake API server bind pods, and the scheduler schedule the new ones.
func (s *scheduler) react(ctx context.Context, running *sync.WaitGroup) clienttesting.ReactionFunc {
	return func(a clienttesting.Action) (bool, runtime.Object, error) {
		create, ok := a.(clienttesting.CreateAction)
		if !ok {
			return false, nil, nil
		}
		switch o := create.GetObject().(type) {
		case *corev1.Binding:
			stored, err := s.client.Tracker().Get(a.GetResource(), o.Namespace, o.Name)
			if pod, ok := stored.(*corev1.Pod); err == nil && ok {
				pod = pod.DeepCopy()
				pod.Spec.NodeName = o.Target.Name
				err = s.client.Tracker().Update(a.GetResource(), pod, o.Namespace)
			}
			return true, o, err
		case *corev1.Pod:
			if o.Spec.SchedulerName == noScheduler || o.Spec.NodeName != "" {
				return false, nil, nil
			}
			s.seen++
			o.UID = types.UID(fmt.Sprint(s.seen))
			after := time.Second - time.Duration(s.seen)*time.Millisecond
			running.Go(func() {
				if sleep(ctx, after) {
					if pod, err := s.client.CoreV1().Pods(o.Namespace).Get(ctx, o.Name, metav1.GetOptions{}); err == nil {
						s.schedule(ctx, pod)
					}
				}
			})
		}
		return false, nil, nil
	}
}

// TestViolations checks that checks find schedulers that violate the contract, and that one which conforms passes.
func TestViolations(t *testing.T) {
	tests := map[string]struct {
		reason    string
		check     string
		scheduler scheduler
		// says is the detail of the failure. Empty means that the check passes.
		says string
	}{
		"Bind":            {reason: "a pod is bound with a Binding", check: "bind"},
		"NodeName":        {reason: "a pod with spec.nodeName does not pass Prebind", check: "bind", scheduler: scheduler{replaces: true}, says: "pod bind was deleted or replaced by another component"},
		"Wait":            {reason: "the scheduler stays on the node", check: "wait"},
		"GivesUp":         {reason: "a 429 is not final", check: "wait", scheduler: scheduler{givesUp: true}, says: "pod wait was not bound within"},
		"OtherNode":       {reason: "a 429 is not a failure", check: "wait", scheduler: scheduler{moves: true}, says: "the pod waited on node-1, and the scheduler posted Bindings to other nodes in the meantime: node-2"},
		"Warning":         {reason: "a 429 is reported as a failure, and --no-failure-events is set", check: "wait", scheduler: scheduler{warns: true}, says: "the scheduler reported the waiting pod as a failure: FailedScheduling"},
		"Refused":         {reason: "backoff grows", check: "refused", scheduler: scheduler{backoff: doubles}},
		"HotLoop":         {reason: "there is no backoff", check: "refused", scheduler: scheduler{backoff: every(50 * time.Millisecond)}, says: "Bindings of the rejected pod in"},
		"ConstantBackoff": {reason: "backoff must grow", check: "refused", scheduler: scheduler{backoff: every(2 * time.Second)}, says: "the scheduler posted 8 Bindings of the rejected pod in 14"},
		"EverySecond":     {reason: "backoff of one second that does not grow", check: "refused", scheduler: scheduler{backoff: every(time.Second)}, says: "the scheduler posted 8 Bindings of the rejected pod in 7"},
		"Dropped":         {reason: "all rejected pods are tried again", check: "refused", scheduler: scheduler{backoff: doubles, drops: true}, says: "5 of 6 rejected pods were not bound within 2m0s after node-2 was free, and the scheduler posted no other Binding of 5 of them; pod refused-1;"},
		"SameNode":        {reason: "a rejected pod is scheduled again", check: "refused", scheduler: scheduler{backoff: doubles, stays: true}, says: "6 of 6 rejected pods were not bound within 2m0s after node-2 was free, and the scheduler posted no other Binding of 0 of them; pod refused-0;"},
		"Invalid":         {reason: "an invalid Binding is not repeated in a loop", check: "invalid", scheduler: scheduler{backoff: doubles}},
		"InvalidLoop":     {reason: "an invalid Binding does not become valid", check: "invalid", scheduler: scheduler{backoff: every(time.Second)}, says: "the scheduler posted 8 Bindings of the rejected pod in"},
		"Workers":         {reason: "pods that wait do not delay others", check: "workers"},
		"FewWorkers":      {reason: "each waiting pod occupies a worker", check: "workers", scheduler: scheduler{workers: make(chan struct{}, 10)}, says: "pod workers was not bound within 2m0s, while Bindings of 10 of 12 other pods waited"},
		"Lock":            {reason: "a lock that is held during a bind delays all others", check: "workers", scheduler: scheduler{workers: make(chan struct{}, 1)}, says: "pod workers was not bound within 2m0s, while Bindings of 1 of 12 other pods waited"},
		"Burst":           {reason: "all pods are bound", check: "burst"},
		"LateBurst": {reason: "the pod and its event show the cause", check: "burst", scheduler: scheduler{never: "burst-3"},
			says: "49 of 50 pods were bound within 2m0s; pod burst-3 was not bound; its last events: BindRefused: start-limit: full"},
		"Stale":  {reason: "a pod of the same name is another pod", check: "stale"},
		"ByName": {reason: "the pod requires another node than the earlier one", check: "stale", scheduler: scheduler{byName: true}, says: "pod stale was bound to node-1 instead of node-2"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := fakeapi.NewClientset(gen.Node("node-1"), gen.Node("node-2"))
				if tc.scheduler.workers != nil {
					tc.scheduler.workers = make(chan struct{}, cap(tc.scheduler.workers)) // A channel of the bubble.
				}
				tc.scheduler.client = client
				s := sessionOn(client, &bytes.Buffer{})
				s.nodes = []corev1.Node{*gen.Node("node-1"), *gen.Node("node-2")}
				s.probe = s.pod("probe", unscheduled)
				_, err := client.CoreV1().Pods(s.ns.Name).Create(t.Context(), s.probe, metav1.CreateOptions{})
				assert.NoError(t, err)
				ctx, cancel := context.WithCancel(t.Context())
				var running sync.WaitGroup
				client.PrependReactor("create", "pods", tc.scheduler.react(ctx, &running))
				all := checks()
				c := all[slices.IndexFunc(all, func(c check) bool { return c.name == tc.check })]
				c.plugins = nil
				s.NoFailureEvents = true
				r := s.make(ctx, c)
				cancel()
				running.Wait()
				if tc.says == "" {
					assert.Equal(t, Pass, r.Status, "%s: %s", tc.reason, r.Detail)
					return
				}
				assert.Equal(t, Fail, r.Status, "%s: %s", tc.reason, r.Detail)
				assert.Contains(t, r.Detail, tc.says, tc.reason)
			})
		})
	}
}

// TestAnswers checks that each answer counts once, also the second one that an event shows, and that no other event counts.
func TestAnswers(t *testing.T) {
	pod := gen.Pod("web-0")
	var all []runtime.Object
	for i, e := range []eventsv1.Event{
		event("BindRefused", "a", time.Now()), event("BindRefused", "b", time.Now()), event("WaitingForPreBind", "a", time.Now()), event("BindRefused", "c", time.Now()),
	} {
		e.Namespace, e.Name, e.Regarding.UID = pod.Namespace, fmt.Sprint(i), pod.UID
		if i == 0 {
			e.Series = &eventsv1.EventSeries{Count: 2}
		}
		if i == 3 {
			e.Regarding.UID = "other"
		}
		all = append(all, &e)
	}
	tr := &trial{session: sessionOn(fakeapi.NewClientset(all...), &bytes.Buffer{})}
	got, err := tr.answers(t.Context(), pod, work.ReasonRefused)
	assert.NoError(t, err)
	assert.ElementsMatch(t, []string{"a", "a", "b"}, got)
}
