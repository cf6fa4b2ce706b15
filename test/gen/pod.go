// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package gen

import (
	"encoding/json"
	"errors"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Image is what the containers of generated pods run, if anything runs them.
const Image = "registry.k8s.io/pause:3.10"

// PodOption is an option of Pod.
type PodOption interface{ applyPod(pod *corev1.Pod) }

type podFunc func(*corev1.Pod)

func (f podFunc) applyPod(o *corev1.Pod) { f(o) }

// Pod makes a pod with one container that waits for a scheduler.
func Pod(name string, options ...PodOption) *corev1.Pod {
	pod := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: DefaultNamespace, Name: name},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: Image}}},
	}
	for _, o := range options {
		o.applyPod(pod)
	}
	return pod
}

// UsesClaim adds a volume, of the claim's name, that is the claim.
func UsesClaim(claim string) PodOption {
	return podFunc(func(pod *corev1.Pod) {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: claim, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}})
	})
}

// EphemeralVolume adds a generic ephemeral volume with the claim's spec.
func EphemeralVolume(name string, options ...ClaimOption) PodOption {
	return podFunc(func(pod *corev1.Pod) {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
			Ephemeral: &corev1.EphemeralVolumeSource{
				VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{Spec: Claim(name, options...).Spec},
			},
		}})
	})
}

// EmptyDir adds a volume without a claim.
func EmptyDir(name string) PodOption {
	return podFunc(func(pod *corev1.Pod) {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
			EmptyDir: &corev1.EmptyDirVolumeSource{},
		}})
	})
}

// BoundTo is a pod that has its node.
func BoundTo(node string) PodOption {
	return podFunc(func(pod *corev1.Pod) { pod.Spec.NodeName = node })
}

// Gate adds a scheduling gate.
func Gate(name string) PodOption {
	return podFunc(func(pod *corev1.Pod) {
		pod.Spec.SchedulingGates = append(pod.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: name})
	})
}

// Scheduler sets the pod's scheduler.
func Scheduler(name string) PodOption {
	return podFunc(func(pod *corev1.Pod) { pod.Spec.SchedulerName = name })
}

// NodeSelector limits the pod to nodes with the label.
func NodeSelector(label, value string) PodOption {
	return podFunc(func(pod *corev1.Pod) {
		if pod.Spec.NodeSelector == nil {
			pod.Spec.NodeSelector = map[string]string{}
		}
		pod.Spec.NodeSelector[label] = value
	})
}

// Tolerates lets the pod go to nodes with a taint of this key.
func Tolerates(key string) PodOption {
	return podFunc(func(pod *corev1.Pod) {
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists})
	})
}

// EndsAtOnce is a pod without a grace period: without a kubelet, its deletion would not complete.
func EndsAtOnce() PodOption {
	return podFunc(func(pod *corev1.Pod) { pod.Spec.TerminationGracePeriodSeconds = new(int64(0)) })
}

// BindingOption is an option of Binding.
type BindingOption interface{ applyBinding(b *corev1.Binding) }

type bindingFunc func(*corev1.Binding)

func (f bindingFunc) applyBinding(o *corev1.Binding) { f(o) }

// Binding makes the Binding of the pod to the node, without a UID.
func Binding(pod *corev1.Pod, node string, options ...BindingOption) *corev1.Binding {
	b := &corev1.Binding{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Binding"},
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
		Target:     corev1.ObjectReference{Kind: "Node", Name: node},
	}
	for _, o := range options {
		o.applyBinding(b)
	}
	return b
}

// Review returns the review that the API server posts for the user's Binding.
func Review(binding *corev1.Binding, user string, dryRun bool) []byte {
	raw, bindingErr := json.Marshal(binding)
	pods, kind := metav1.GroupVersionResource{Version: "v1", Resource: "pods"}, metav1.GroupVersionKind{Version: "v1", Kind: "Binding"}
	body, err := json.Marshal(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{
			UID: "review-1", Operation: admissionv1.Create, Namespace: binding.Namespace, Name: binding.Name,
			Kind: kind, RequestKind: &kind, Resource: pods, RequestResource: &pods, SubResource: "binding", RequestSubResource: "binding",
			UserInfo: authenticationv1.UserInfo{Username: user, Groups: []string{"system:authenticated"}},
			DryRun:   &dryRun, Object: runtime.RawExtension{Raw: raw},
			Options: runtime.RawExtension{Raw: []byte(`{"kind":"CreateOptions","apiVersion":"meta.k8s.io/v1"}`)},
		},
	})
	if err := errors.Join(bindingErr, err); err != nil {
		panic(err) // Every Binding has a JSON form.
	}
	return body
}

// AtVersion makes the Binding depend on the pod's resourceVersion.
func AtVersion(version string) BindingOption {
	return bindingFunc(func(b *corev1.Binding) { b.ResourceVersion = version })
}
