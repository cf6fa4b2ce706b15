// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package operator shows how an operator gives its pods the rack of their node. With Prebind and the policy rack-awareness, a pod has it
// before its first container starts. Otherwise, the operator writes it after the bind. The template of the pods is the same, so nothing
// restarts when Prebind is installed, removed or in another mode. It is code to copy, for Go 1.26;
// docs/for-operators.md explains it.
package operator

import (
	"context"
	"errors"
	"fmt"
	"slices"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// policyName is the name of the policy, selectingLabel that of the label of its pods, and prebindAnnotation the annotation that it writes.
	policyName        = "rack-awareness"
	selectingLabel    = "rack-awareness"
	prebindAnnotation = policyName + ".policy.prebind.dev/rack"
	// requireAnnotation makes Prebind reject the bind if the plugin policy is off.
	requireAnnotation = "binder.prebind.dev/require"
	// ownAnnotation is the annotation that Supply writes. After a pod is created, the API server rejects changes of Prebind's keys.
	ownAnnotation = "store.example.com/rack"
	// volumeName is the name of the volume, and directory its path in the containers. The file prebind has the rack, or else the file operator.
	volumeName = "rack"
	directory  = "/etc/rack"
)

// Template changes the template of the pods: the policy selects them, their containers have the rack in a file of /etc/rack, and the
// first init container waits until a file is not empty. Its image has a shell, such as busybox or that of the store; its user and seccomp profile
// are those of the pod. Template removes values from the template's annotations, which its author could have written, and replaces a volume
// with its name. Call it on a template that the operator builds, without defaults of the API server. With require, pods that were bound without
// Prebind do not start: take it from the custom resource, because its change restarts the store.
func Template(template *corev1.PodTemplateSpec, image string, require bool) {
	metav1.SetMetaDataLabel(&template.ObjectMeta, selectingLabel, "true")
	delete(template.Annotations, requireAnnotation)
	if require {
		metav1.SetMetaDataAnnotation(&template.ObjectMeta, requireAnnotation, "policy")
	}
	delete(template.Annotations, prebindAnnotation)
	delete(template.Annotations, ownAnnotation)
	spec := &template.Spec
	spec.Volumes = slices.DeleteFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == volumeName })
	item := func(path, annotation string) corev1.DownwardAPIVolumeFile {
		return corev1.DownwardAPIVolumeFile{Path: path, FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.annotations['" + annotation + "']"}}
	}
	spec.Volumes = append(spec.Volumes, corev1.Volume{Name: volumeName, VolumeSource: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{
		Items: []corev1.DownwardAPIVolumeFile{item("prebind", prebindAnnotation), item("operator", ownAnnotation)},
	}}})
	const name = "wait-for-rack"
	spec.InitContainers = slices.DeleteFunc(spec.InitContainers, func(c corev1.Container) bool { return c.Name == name })
	spec.InitContainers = slices.Insert(spec.InitContainers, 0, corev1.Container{
		Name: name, Image: image, Command: []string{"sh", "-c", `trap 'exit 1' TERM; cd ` + directory + `; until [ -n "$(cat prebind operator)" ]; do sleep 1; done`},
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("16Mi")},
			Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("16Mi")},
		},
		SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: new(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}},
	})
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range containers {
			c := &containers[i]
			c.VolumeMounts = slices.DeleteFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == volumeName })
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: volumeName, MountPath: directory, ReadOnly: true})
		}
	}
}

// Supply writes the rack of the node, or else its zone, to a pod that was bound without it, as the policy rack-awareness does. Call it
// whenever a pod of the operator changes. Label is the label of nodes, such as example.com/rack. For ErrNoRack, set a condition and requeue
// after a minute: the pod waits, and nothing reports a change of the node. For ErrUnprepared, set a condition: the pod waits until somebody
// deletes it. Ignore a conflict, because the watch reports the newer pod, and a node
// that is not found. Supply does not change its argument.
//
// Pods is the manager's GetClient, and nodes its GetAPIReader: the client would list and watch all nodes.
//
// +kubebuilder:rbac:groups="",resources=nodes,verbs=get
// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch;patch
func Supply(ctx context.Context, pods client.Writer, nodes client.Reader, pod *corev1.Pod, label string) error {
	if pod.Spec.NodeName == "" || Rack(pod) != "" || pod.DeletionTimestamp != nil {
		return nil
	}
	if pod.Annotations[requireAnnotation] != "" {
		return fmt.Errorf("pod %s/%s: %w", pod.Namespace, pod.Name, ErrUnprepared)
	}
	node := &corev1.Node{}
	if err := nodes.Get(ctx, client.ObjectKey{Name: pod.Spec.NodeName}, node); err != nil {
		return err
	}
	for _, key := range []string{label, corev1.LabelTopologyZone} {
		if rack := node.Labels[key]; rack != "" {
			supplied := pod.DeepCopy()
			metav1.SetMetaDataAnnotation(&supplied.ObjectMeta, ownAnnotation, rack)
			// Without the lock, a pod that replaced this one under its name could get its rack.
			return pods.Patch(ctx, supplied, client.MergeFromWithOptions(pod, client.MergeFromWithOptimisticLock{}))
		}
	}
	return fmt.Errorf("pod %s/%s on node %s: %w: neither the label %s nor %s", pod.Namespace, pod.Name, node.Name, ErrNoRack, label, corev1.LabelTopologyZone)
}

var (
	// ErrNoRack means that the node has no rack.
	ErrNoRack = errors.New("the node has no rack")
	// ErrUnprepared means that a pod that requires Prebind was bound without it.
	ErrUnprepared = errors.New("bound without Prebind, which it requires: remove the cause, then delete the pod")
)

// Rack returns the rack of the pod, or "" if it has none yet.
func Rack(pod *corev1.Pod) string {
	if rack := pod.Annotations[prebindAnnotation]; rack != "" {
		return rack
	}
	return pod.Annotations[ownAnnotation]
}

// Installed returns true if the API server sends the binds of the namespace to Prebind, the plugin policy is installed, and the policy
// rack-awareness is Ready, enforces, and reads the label that Supply reads: otherwise, pods get another rack after a restart. It does not see
// whether replicas answer, or Prebind's mode. Reader is the manager's GetAPIReader. Errors are those of the API server.
//
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=mutatingwebhookconfigurations,resourceNames=prebind,verbs=get
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=validatingwebhookconfigurations,resourceNames=prebind-policy,verbs=get
// +kubebuilder:rbac:groups=policy.prebind.dev,resources=bindpolicies,resourceNames=rack-awareness,verbs=get
func Installed(ctx context.Context, reader client.Reader, namespace, label string) (bool, error) {
	var configuration admissionregistrationv1.MutatingWebhookConfiguration
	if err := reader.Get(ctx, client.ObjectKey{Name: "prebind"}, &configuration); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	var ns corev1.Namespace
	if err := reader.Get(ctx, client.ObjectKey{Name: namespace}, &ns); err != nil {
		return false, err
	}
	for _, webhook := range configuration.Webhooks {
		called, err := metav1.LabelSelectorAsSelector(webhook.NamespaceSelector)
		if err != nil || !called.Matches(labels.Set(ns.Labels)) {
			return false, err
		}
	}
	// Without the plugin, policies can stay Ready for good.
	if err := reader.Get(ctx, client.ObjectKey{Name: "prebind-policy"}, &admissionregistrationv1.ValidatingWebhookConfiguration{}); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(schema.GroupVersionKind{Group: "policy.prebind.dev", Version: "v1alpha1", Kind: "BindPolicy"})
	if err := reader.Get(ctx, client.ObjectKey{Name: policyName}, object); meta.IsNoMatchError(err) {
		return false, nil // The CustomResourceDefinition does not exist.
	} else if err != nil {
		return false, client.IgnoreNotFound(err)
	}
	var policy struct {
		Spec struct {
			Mode      string     `json:"mode"`
			Variables []variable `json:"variables"`
		} `json:"spec"`
		Status struct {
			ObservedGeneration int64              `json:"observedGeneration"`
			Conditions         []metav1.Condition `json:"conditions"`
		} `json:"status"`
	}
	err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &policy)
	return policy.Spec.Mode != "Audit" && slices.Contains(policy.Spec.Variables, variable{Name: "label", Expression: "'" + label + "'"}) && policy.Status.ObservedGeneration == object.GetGeneration() &&
		meta.IsStatusConditionTrue(policy.Status.Conditions, "Ready"), err
}

// variable is a variable of a BindPolicy. The Expression is CEL.
type variable struct {
	Name       string `json:"name"`
	Expression string `json:"expression"`
}
