// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
)

// Annotations with which a pod waits in Prebind for a label of its node.
const (
	expectAnnotation = "node-state.prebind.dev/expect"
	waitAnnotation   = "node-state.prebind.dev/wait"
)

// Texts of advice.
const (
	adviceRepeat = "After a 429, keep the node for the pod and post the same Binding again after Retry-After. client-go does it ten times, unless the client sets MaxRetries(0). " + adviceTimeout
	adviceStay   = "A 429 is not a failure: keep the node for the pod, and post the same Binding again after Retry-After. Or the client that binds has a timeout (rest.Config.Timeout), and the scheduler never gets the 429. " + adviceTimeout
	// adviceTimeout is for a scheduler that gets an error of its client instead of the answer.
	adviceTimeout = "Leave rest.Config.Timeout at 0 (" + guide + "#time-limits)."
)

// longestCall is the maximum of timeoutSeconds in a webhook configuration.
const longestCall = 30 * time.Second

// waits makes the pod wait until release.
func waits(pod *corev1.Pod) {
	pod.Annotations[expectAnnotation], pod.Annotations[waitAnnotation] = releaseLabel(pod.Namespace, pod.Name), (maxWait + time.Minute).String()
}

// release ends the wait on the node: the held call, or the next one, binds the pod.
func (s *session) release(ctx context.Context, pod *corev1.Pod, node string) error {
	return labelNode(ctx, s.client, node, releaseLabel(pod.Namespace, pod.Name), new("true"))
}

// waiting waits until an event shows that Prebind makes the pod wait.
func (s *session) waiting(ctx context.Context, pod *corev1.Pod) error {
	err := s.until(ctx, s.Timeout, func(ctx context.Context) (bool, error) {
		if err := s.stillWaits(ctx, pod); err != nil {
			return false, err
		}
		seen, err := s.waitSightings(ctx, pod)
		return len(seen) > 0, err
	})
	if errors.Is(err, errTime) {
		return &violation{
			what:   fmt.Sprintf("the scheduler posted no Binding for pod %s within %s%s", pod.Name, s.Timeout, s.eventsOf(ctx, pod)),
			advice: "Bind other pods while some wait: bind each pod in its own goroutine, or repeat waiting Bindings from a delayed queue. To test one rule at a time, use --run.",
		}
	}
	return err
}

// stillWaits returns a violation if the pod is bound.
func (s *session) stillWaits(ctx context.Context, pod *corev1.Pod) error {
	now, err := s.read(ctx, pod)
	if err == nil && now.Spec.NodeName != "" {
		return &violation{
			what:   fmt.Sprintf("pod %s was bound to %s while Prebind makes its bind wait", pod.Name, now.Spec.NodeName),
			advice: "Bind with a Binding, and do not override the annotations of the pod under prebind.dev.",
		}
	}
	return err
}

// checkWait checks that the scheduler repeats a Binding that has to wait, and stays on the node.
func (s *session) checkWait(ctx context.Context) (string, error) {
	pod, err := s.create(ctx, s.pod("wait", waits))
	if err != nil {
		return "", err
	}
	began := time.Now()
	if err = s.waiting(ctx, pod); err != nil {
		return "", err
	}
	// Let the wait last.
	err = s.until(ctx, max(s.Wait-time.Since(began), pollInterval), func(ctx context.Context) (bool, error) { return false, s.stillWaits(ctx, pod) })
	if err != nil && !errors.Is(err, errTime) {
		return "", err
	}
	waited := time.Since(began)
	complaints, err := s.complaints(ctx, pod)
	if err != nil {
		return "", err
	}
	seen, err := s.waitSightings(ctx, pod)
	if err != nil {
		return "", err
	}
	nodes := nodesOf(seen)
	if err = stayed(nodes); err != nil {
		return "", err
	}
	if len(complaints) > 0 && s.NoFailureEvents {
		return "", &violation{what: "the scheduler reported the waiting pod as a failure: " + strings.Join(complaints, ", "), advice: adviceStay}
	}
	if err = s.release(ctx, pod, nodes[0]); err != nil {
		return "", err
	}
	released := time.Now()
	now, err := s.bound(ctx, pod, s.Timeout, adviceRepeat)
	if err != nil {
		return "", err
	}
	if now.Spec.NodeName != nodes[0] {
		return "", &violation{what: fmt.Sprintf("the pod waited on %s, but was bound to %s", nodes[0], now.Spec.NodeName), advice: adviceStay}
	}
	detail := fmt.Sprintf("waited %s, then bound to %s %s later", seconds(waited), now.Spec.NodeName, seconds(time.Since(released)))
	if s.Wait < longestCall {
		detail += fmt.Sprintf("; --wait is shorter than the longest call, %s, so the scheduler may have got no 429", longestCall)
	}
	if len(complaints) > 0 {
		detail += "; the scheduler reported " + strings.Join(complaints, ", ")
	}
	return detail, nil
}

// stayed returns a violation if the pod waited on more than one node. The nodes are in the order of the waits.
func stayed(nodes []string) error {
	if len(nodes) < 2 {
		return nil
	}
	return &violation{
		what:   fmt.Sprintf("the pod waited on %s, and the scheduler posted Bindings to other nodes in the meantime: %s", nodes[0], strings.Join(nodes[1:], ", ")),
		advice: adviceStay,
	}
}

// checkStale checks that a bind does not apply to a later pod of the same name.
func (s *session) checkStale(ctx context.Context) (string, error) {
	first, other := &s.nodes[0], &s.nodes[len(s.nodes)-1]
	old, err := s.create(ctx, s.pod("stale", waits, onNode(first)))
	if err != nil {
		return "", err
	}
	if err = s.waiting(ctx, old); err != nil {
		return "", err
	}
	if err = s.delete(ctx, old); err != nil {
		return "", err
	}
	created := time.Now()
	pod, err := s.create(ctx, s.pod("stale", onNode(other)))
	if err != nil {
		return "", err
	}
	now, err := s.bound(ctx, pod, s.Timeout, "When a pod is deleted, drop its bind. Key pods by UID, not by name: schedule a new pod of the same name like any other pod. A stale Binding is answered with 409: do not repeat it.")
	if err != nil {
		return "", err
	}
	if now.Spec.NodeName != other.Name {
		return "", &violation{
			what:   fmt.Sprintf("the new pod was bound to %s, the node of the deleted pod, but requires %s", now.Spec.NodeName, other.Name),
			advice: "Set metadata.uid of the Binding to the UID of the pod that you scheduled.",
		}
	}
	if now.Annotations[expectAnnotation] != "" {
		return "", &violation{what: "the new pod has annotations of the deleted pod's Binding", advice: "Build the Binding from the pod that you schedule."}
	}
	return fmt.Sprintf("the new pod was bound to %s %s after the deletion", now.Spec.NodeName, seconds(time.Since(created))), nil
}

// pause waits for the time, or until the context ends.
func pause(ctx context.Context, d time.Duration) {
	_ = wait.PollUntilContextTimeout(ctx, d, d, false, func(context.Context) (bool, error) { return true, nil })
}
