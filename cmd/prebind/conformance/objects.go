// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
)

// readyTimeout is the time in which a new namespace gets its service account.
const readyTimeout = time.Minute

// podOption changes a pod of the run.
type podOption func(pod *corev1.Pod)

// pod returns a pod for the scheduler under test. It fulfils the Pod Security Standard "restricted".
func (s *session) pod(name string, options ...podOption) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: name, Labels: s.labels(), Annotations: map[string]string{}},
		Spec: corev1.PodSpec{
			SchedulerName:                 s.Scheduler,
			TerminationGracePeriodSeconds: ptr.To[int64](0),
			AutomountServiceAccountToken:  new(false),
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: new(true), RunAsUser: ptr.To[int64](65535),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name: "main", Image: s.Image,
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: new(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
		},
	}
	for _, o := range options {
		o(pod)
	}
	return pod
}

// unscheduled keeps all schedulers away from the pod.
func unscheduled(pod *corev1.Pod) { pod.Spec.SchedulerName = noScheduler }

func annotation(key, value string) podOption {
	return func(pod *corev1.Pod) { pod.Annotations[key] = value }
}

func label(key, value string) podOption {
	return func(pod *corev1.Pod) { pod.Labels[key] = value }
}

// onNode pins the pod to a node.
func onNode(n *corev1.Node) podOption {
	return func(pod *corev1.Pod) {
		pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: n.Labels[corev1.LabelHostname]}
	}
}

// onNodes limits the pod to the nodes. Of these, it prefers those without a pod with the label.
func onNodes(nodes []corev1.Node, avoid map[string]string) podOption {
	return func(pod *corev1.Pod) {
		var hostnames []string
		for _, n := range nodes {
			hostnames = append(hostnames, n.Labels[corev1.LabelHostname])
		}
		pod.Spec.Affinity = &corev1.Affinity{
			NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
					{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: hostnames},
				}}},
			}},
			PodAntiAffinity: &corev1.PodAntiAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{
				Weight: 100,
				PodAffinityTerm: corev1.PodAffinityTerm{
					LabelSelector: &metav1.LabelSelector{MatchLabels: avoid}, TopologyKey: corev1.LabelHostname,
				},
			}}},
		}
	}
}

// create creates the pod. It retries while the namespace has no service account.
func (s *session) create(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	var created *corev1.Pod
	var last error
	err := wait.PollUntilContextTimeout(ctx, pollInterval, readyTimeout, true, func(ctx context.Context) (bool, error) {
		created, last = s.client.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
		switch {
		case last == nil:
			return true, nil
		case apierrors.IsForbidden(last) && strings.Contains(last.Error(), "serviceaccount"), apierrors.IsServerTimeout(last), apierrors.IsTooManyRequests(last):
			return false, nil
		default:
			return false, last
		}
	})
	if err != nil {
		return nil, fmt.Errorf("creating pod %s: %w", pod.Name, last)
	}
	s.created = append(s.created, created)
	return created, nil
}

// discard deletes the pods of the check, also pods that replaced them, and waits until they are gone.
func (s *session) discard(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.CleanupTimeout)
	defer cancel()
	errs := make([]error, len(s.created))
	var all sync.WaitGroup
	for i, pod := range s.created {
		pods := s.client.CoreV1().Pods(pod.Namespace)
		all.Go(func() {
			err := wait.PollUntilContextCancel(ctx, pollInterval, true, func(ctx context.Context) (bool, error) {
				return apierrors.IsNotFound(pods.Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})), nil
			})
			if err != nil {
				errs[i] = fmt.Errorf("deleting pod %s: %w", pod.Name, err)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// delete deletes the pod now and waits until it is gone.
func (s *session) delete(ctx context.Context, pod *corev1.Pod) error {
	pods := s.client.CoreV1().Pods(pod.Namespace)
	err := pods.Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0), Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting pod %s: %w", pod.Name, err)
	}
	err = wait.PollUntilContextTimeout(ctx, pollInterval, s.Timeout, true, func(ctx context.Context) (bool, error) {
		now, err := pods.Get(ctx, pod.Name, metav1.GetOptions{})
		return apierrors.IsNotFound(err) || err == nil && now.UID != pod.UID, nil
	})
	if err != nil {
		return fmt.Errorf("waiting for the deletion of pod %s: %w", pod.Name, err)
	}
	return nil
}

// releasedPods are the names of the pods whose waits a label of their node ends.
var releasedPods = []string{"wait", "binding-annotations"}

// releaseLabel returns the key of the label that ends the wait of the pod. No node has it before.
func releaseLabel(run, pod string) string { return run + ".conformance.prebind.dev/" + pod }

// labelNode sets a label of the node or, with nil, removes it.
func labelNode(ctx context.Context, client kubernetes.Interface, node, key string, value *string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]*string{key: value}}})
	if err == nil {
		_, err = client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	if err != nil {
		return fmt.Errorf("changing the label %s of node %s: %w", key, node, err)
	}
	return nil
}
