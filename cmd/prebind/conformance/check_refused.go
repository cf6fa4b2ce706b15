// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// deviceAnnotation requests a device of a resource that no node has. Prebind does not check that devices exist.
	deviceAnnotation = "device.prebind.dev/conformance"
	// timeoutAnnotation is the budget of a bind.
	timeoutAnnotation = "binder.prebind.dev/timeout"
	// notADuration is an invalid budget.
	notADuration = "soon"
	// roleLabel marks the pods that hold a device.
	roleLabel = "conformance.prebind.dev/role"
)

const adviceAgain = "After a refusal, release the node and schedule the pod again, with backoff, as a pod that does not fit. Do not drop the pod, and do not mark it as failed."

// checkRefused checks that the scheduler tries again after a refusal, with backoff, and binds the pod to another node.
func (s *session) checkRefused(ctx context.Context) (string, error) {
	nodes := s.nodes[:2]
	holders := map[string]*corev1.Pod{}
	for i := range nodes {
		pod, err := s.hold(ctx, "holder-"+fmt.Sprint(i), nodes[i].Name, s.ns)
		if err != nil {
			return "", err
		}
		holders[nodes[i].Name] = pod
	}
	pod, seen, pace, err := s.refuse(ctx, nodes)
	if err != nil {
		return "", err
	}
	if pace.loops() {
		return "", pace.violation()
	}
	if !pace.waits() {
		return "", &unclear{pace.String()}
	}
	last := seen[len(seen)-1].node
	free := nodes[0].Name
	if free == last {
		free = nodes[1].Name
	}
	if err = s.delete(ctx, holders[free]); err != nil {
		return "", err
	}
	released := time.Now()
	now, err := s.bound(ctx, pod, s.Timeout, adviceAgain+" Try other nodes too: node "+free+" was free.")
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("refused on %s (403) with %s, then bound to %s %s after its device was free",
		strings.Join(nodesOf(seen), " and "), pace, now.Spec.NodeName, seconds(time.Since(released))), nil
}

// maxRefused is the number of pods whose refusals can show whether the scheduler waits before it tries again.
const maxRefused = 4

// refuse lets Prebind refuse a pod on the nodes until the pace of the scheduler is clear. On a cluster whose calls take very
// different times, it replaces the pod. It returns the last pod and its refusals.
func (s *session) refuse(ctx context.Context, nodes []corev1.Node) (pod *corev1.Pod, seen []sighting, p pace, err error) {
	for i := 1; ; i++ {
		pod, err = s.create(ctx, s.pod(fmt.Sprintf("refused-%d", i), annotation(deviceAnnotation, s.ns), onNodes(nodes, map[string]string{roleLabel: "holder"})))
		if err != nil {
			return nil, nil, p, err
		}
		err = s.measure(ctx, &p, fmt.Sprintf("refused-measured-%d", i), apierrors.IsForbidden, func(ctx context.Context) error {
			_, err := s.refusedTwice(ctx, pod)
			return err
		}, annotation(deviceAnnotation, s.ns))
		if err != nil {
			return nil, nil, p, err
		}
		if seen, err = s.refusals(ctx, pod); err != nil {
			return nil, nil, p, err
		}
		p.add(seen)
		if p.loops() || p.waits() || i == maxRefused {
			return pod, seen, p, nil
		}
		if err = s.delete(ctx, pod); err != nil {
			return nil, nil, p, err
		}
	}
}

// hold creates a pod with the device and binds it to the node itself.
func (s *session) hold(ctx context.Context, name, node, id string) (*corev1.Pod, error) {
	pod, err := s.create(ctx, s.pod(name, unscheduled, label(roleLabel, "holder"), annotation(deviceAnnotation, id)))
	if err != nil {
		return nil, err
	}
	if err = s.client.CoreV1().Pods(s.ns).Bind(ctx, bindingOf(pod, node, nil), metav1.CreateOptions{}); err != nil {
		return nil, fmt.Errorf("binding pod %s to node %s: %w", name, node, err)
	}
	return pod, nil
}

// fewestCalls is the minimum number of calls that measure makes.
const fewestCalls = 6

// measure runs f, and measures at the same time the Bindings of another pod, which Prebind rejects for the same reason. Their events do not
// count, because they are about that pod.
func (s *session) measure(ctx context.Context, p *pace, name string, rejected func(error) bool, f func(ctx context.Context) error, options ...podOption) error {
	pod, err := s.create(ctx, s.pod(name, append(options, unscheduled)...))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	var running sync.WaitGroup
	running.Go(func() { ended <- f(ctx) })
	defer running.Wait()
	defer cancel()
	for calls, running := 0, true; running || calls < fewestCalls; calls++ {
		began := time.Now()
		err = s.client.CoreV1().Pods(s.ns).Bind(ctx, bindingOf(pod, s.nodes[calls%2].Name, nil), metav1.CreateOptions{})
		if err == nil {
			return fmt.Errorf("the bind of pod %s was not rejected", pod.Name)
		}
		if !rejected(err) {
			return fmt.Errorf("bind of pod %s: %w", pod.Name, err)
		}
		p.called(time.Since(began))
		select {
		case err = <-ended:
			if err != nil {
				return err
			}
			running = false
		case <-time.After(pollInterval):
		}
	}
	return nil
}

// refusedTwice waits until Prebind has refused the pod twice, and returns the refusals.
func (s *session) refusedTwice(ctx context.Context, pod *corev1.Pod) ([]sighting, error) {
	var seen []sighting
	err := s.until(ctx, s.Timeout, func(ctx context.Context) (ok bool, err error) {
		now, err := s.read(ctx, pod)
		if err != nil {
			return false, err
		}
		if now.Spec.NodeName != "" {
			return false, &violation{
				what:   fmt.Sprintf("pod %s was bound to %s, although Prebind refuses it there", pod.Name, now.Spec.NodeName),
				advice: "Bind with a Binding, and do not override the annotations of the pod under prebind.dev.",
			}
		}
		seen, err = s.refusals(ctx, pod)
		return len(seen) > 1, err
	})
	switch {
	case !errors.Is(err, errTime):
		return seen, err
	case len(seen) == 0:
		return nil, &violation{what: fmt.Sprintf("the scheduler posted no Binding for pod %s within %s%s", pod.Name, s.Timeout, s.eventsOf(ctx, pod)), advice: "Schedule the pod, also while other pods wait."}
	default:
		return nil, &violation{what: fmt.Sprintf("the scheduler gave up after one refusal: it posted no other Binding within %s", s.Timeout), advice: adviceAgain}
	}
}

// checkInvalid checks that the scheduler does not repeat a Binding with an invalid annotation in a loop.
func (s *session) checkInvalid(ctx context.Context) (string, error) {
	pod, err := s.create(ctx, s.pod("invalid", annotation(timeoutAnnotation, notADuration)))
	if err != nil {
		return "", err
	}
	var p pace
	err = s.measure(ctx, &p, "invalid-measured", apierrors.IsInvalid, func(ctx context.Context) error {
		err := s.until(ctx, s.Timeout, func(ctx context.Context) (ok bool, err error) {
			if err = s.stillWaits(ctx, pod); err != nil {
				return false, err
			}
			seen, err := s.refusals(ctx, pod)
			return len(seen) > 0, err
		})
		if err == nil {
			pause(ctx, settles)
		}
		return err
	}, annotation(timeoutAnnotation, notADuration))
	if errors.Is(err, errTime) {
		return "", &violation{what: fmt.Sprintf("the scheduler posted no Binding for pod %s within %s%s", pod.Name, s.Timeout, s.eventsOf(ctx, pod)), advice: "Schedule the pod, also while other pods wait."}
	}
	if err != nil {
		return "", err
	}
	seen, err := s.refusals(ctx, pod)
	if err != nil {
		return "", err
	}
	if p.add(seen); p.loops() {
		return "", p.violation()
	}
	return "refused as invalid (422), and not repeated in a loop", nil
}
