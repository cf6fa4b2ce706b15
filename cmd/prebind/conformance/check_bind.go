// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// settles is the time in which a scheduler that writes to bound pods has done so.
const settles = 2 * time.Second

// checkBind checks that the scheduler binds a pod to the node that the pod requires.
func (s *session) checkBind(ctx context.Context) (string, error) {
	began := time.Now()
	pod, err := s.create(ctx, s.pod("bind", onNode(&s.nodes[0])))
	if err != nil {
		return "", err
	}
	pod, err = s.bound(ctx, pod, s.Timeout, fmt.Sprintf("Check that a scheduler with the name %s runs, and that it may bind pods in all namespaces.", s.Scheduler))
	if err != nil {
		return "", err
	}
	if pod.Spec.NodeName != s.nodes[0].Name {
		return "", &violation{
			what:   fmt.Sprintf("the pod was bound to %s, but its nodeSelector requires %s", pod.Spec.NodeName, s.nodes[0].Name),
			advice: "Observe spec.nodeSelector of the pod.",
		}
	}
	return fmt.Sprintf("bound to %s after %s", pod.Spec.NodeName, seconds(time.Since(began))), nil
}

// checkAnnotations checks that a bound pod has the annotations of Prebind's mutators, and keeps them.
func (s *session) checkAnnotations(ctx context.Context) (string, error) {
	x, err := s.explain(ctx, s.nodes[0].Name, nil)
	if err != nil {
		return "", err
	}
	if x == nil || len(ofNode(x.Annotations)) == 0 {
		return "", &skip{"no mutator adds annotations of the node, so it cannot be observed that binds pass Prebind; switch on the mutator topology"}
	}
	pod, err := s.create(ctx, s.pod("annotations", annotation("conformance.prebind.dev/own", "kept")))
	if err != nil {
		return "", err
	}
	if pod, err = s.bound(ctx, pod, s.Timeout, "Bind the pod."); err != nil {
		return "", err
	}
	if x, err = s.explain(ctx, pod.Spec.NodeName, nil); err != nil {
		return "", err
	}
	if x == nil {
		return "", errNoExplanation
	}
	want := ofNode(x.Annotations)
	if err = s.compare(pod, want); err != nil {
		return "", err
	}
	// A scheduler that writes its own copy of the pod after the bind removes annotations.
	err = s.until(ctx, settles, func(ctx context.Context) (bool, error) {
		now, err := s.read(ctx, pod)
		if err != nil {
			return false, err
		}
		want["conformance.prebind.dev/own"] = "kept"
		return false, s.compare(now, want)
	})
	if err != nil && !errors.Is(err, errTime) {
		return "", err
	}
	return fmt.Sprintf("%d annotations equal those that Prebind announces for node %s", len(ofNode(x.Annotations)), pod.Spec.NodeName), nil
}

// errNoExplanation means that Prebind took part in earlier binds only.
var errNoExplanation = errors.New("binds do not pass Prebind any more; run 'prebind status'")

// ofNode returns the annotations that depend on the node only.
func ofNode(all map[string]string) map[string]string {
	all = maps.Clone(all)
	maps.DeleteFunc(all, func(key, _ string) bool {
		return !strings.HasPrefix(key, "topology.prebind.dev/") && !strings.HasPrefix(key, "node-info.prebind.dev/")
	})
	return all
}

// compare returns a violation if the pod lacks annotations, or has other values.
func (s *session) compare(pod *corev1.Pod, want map[string]string) error {
	var wrong []string
	for _, key := range slices.Sorted(maps.Keys(want)) {
		if got, ok := pod.Annotations[key]; !ok {
			wrong = append(wrong, key+" is missing")
		} else if got != want[key] {
			wrong = append(wrong, fmt.Sprintf("%s is %q instead of %q", key, got, want[key]))
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	return &violation{
		what:   fmt.Sprintf("pod %s on node %s: %s", pod.Name, pod.Spec.NodeName, strings.Join(wrong, ", ")),
		advice: "Bind with a Binding (POST pods/NAME/binding). Do not write the annotations of the pod after the bind from a copy that was read before it.",
	}
}

// checkBindingAnnotations checks that an annotation of the Binding reaches the pod, also if the Binding has to be repeated.
func (s *session) checkBindingAnnotations(ctx context.Context) (string, error) {
	key := s.BindingAnnotation
	if key == "" {
		return "", &skip{"name an annotation that your scheduler sets on every Binding with --binding-annotation"}
	}
	options := []podOption{}
	repeated := slices.Contains(s.plugins, nodeState)
	if repeated {
		options = append(options, waits)
	}
	pod, err := s.create(ctx, s.pod("binding-annotations", options...))
	if err != nil {
		return "", err
	}
	if repeated {
		if err = s.waiting(ctx, pod); err != nil {
			return "", err
		}
		seen, err := s.waitSightings(ctx, pod)
		if err != nil {
			return "", err
		}
		if err = s.release(ctx, pod, seen[0].node); err != nil {
			return "", err
		}
	}
	if pod, err = s.bound(ctx, pod, s.Timeout, adviceRepeat); err != nil {
		return "", err
	}
	value, ok := pod.Annotations[key]
	if !ok {
		return "", &violation{
			what:   fmt.Sprintf("the bound pod lacks the annotation %s, which the scheduler should set on the Binding", key),
			advice: "Post the same annotations with every call for a bind. client-go does it. If your scheduler builds the Binding again, add its annotations again.",
		}
	}
	return fmt.Sprintf("the pod has %s=%q", key, value), nil
}

// seconds formats a duration for a detail.
func seconds(d time.Duration) string {
	if d < time.Second {
		return d.Round(time.Millisecond).String()
	}
	return d.Round(100 * time.Millisecond).String()
}

// pods lists pods of the run.
func (s *session) pods(ctx context.Context, selector string) ([]corev1.Pod, error) {
	list, err := s.client.CoreV1().Pods(s.ns).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, fmt.Errorf("listing pods: %w", err)
	}
	return list.Items, nil
}
