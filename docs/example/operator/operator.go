// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package operator shows how an operator uses the racks of Prebind's policy rack-awareness: it detects Prebind, changes the template of
// its pods, and verifies each pod. It is code to copy; docs/for-operators.md explains the steps.
package operator

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// rackAnnotation is the annotation that the policy writes.
	rackAnnotation = "rack-awareness.policy.prebind.dev/rack"
	// requireAnnotation is RequireAnnotation of the module github.com/prebind/prebind/client.
	requireAnnotation = "binder.prebind.dev/require"
	// decisionAnnotation is on the custom resource: whether its pods rely on Prebind.
	decisionAnnotation = "store.example.com/prebind"
)

// Installed returns whether Prebind is registered and has the policy, and the policy is not in mode Audit. This shows neither the mode of
// Prebind nor its health, and Helm keeps the policy after an uninstallation. The mapper is GetRESTMapper of the manager, which finds the
// version of BindPolicy. The reader is GetAPIReader: the cached client would need list and watch.
//
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=mutatingwebhookconfigurations,resourceNames=prebind,verbs=get
// +kubebuilder:rbac:groups=policy.prebind.dev,resources=bindpolicies,resourceNames=rack-awareness,verbs=get
func Installed(ctx context.Context, mapper meta.RESTMapper, reader client.Reader) (bool, error) {
	mapping, err := mapper.RESTMapping(schema.GroupKind{Group: "policy.prebind.dev", Kind: "BindPolicy"})
	if meta.IsNoMatchError(err) { // The CustomResourceDefinition of policies is not installed.
		return false, nil
	}
	if err != nil {
		return false, err
	}
	policy := &unstructured.Unstructured{}
	policy.SetGroupVersionKind(mapping.GroupVersionKind)
	for _, o := range []struct {
		name   string
		object client.Object
	}{{"rack-awareness", policy}, {"prebind", &admissionregistrationv1.MutatingWebhookConfiguration{}}} {
		if err := reader.Get(ctx, client.ObjectKey{Name: o.name}, o.object); err != nil {
			return false, client.IgnoreNotFound(err)
		}
	}
	mode, _, err := unstructured.NestedString(policy.Object, "spec", "mode")
	return mode != "Audit", err
}

// Decide returns whether the pods of the custom resource rely on Prebind. It makes the decision once, and adds it to the resource,
// which the caller writes before it creates pods. The user can set another one. The template is that of existing pods, or nil: they keep
// it, because a change restarts them. Unlike a status, an annotation is part of a backup. After an error, the caller creates no pods.
func Decide(ctx context.Context, mapper meta.RESTMapper, reader client.Reader, resource client.Object, existing *corev1.PodTemplateSpec) (bool, error) {
	annotations := resource.GetAnnotations()
	if decision, ok := annotations[decisionAnnotation]; ok {
		return strconv.ParseBool(decision)
	}
	decision := existing != nil && existing.Annotations[requireAnnotation] != ""
	if existing == nil {
		var err error
		if decision, err = Installed(ctx, mapper, reader); err != nil {
			return false, err
		}
	}
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[decisionAnnotation] = strconv.FormatBool(decision)
	resource.SetAnnotations(annotations)
	return decision, nil
}

// Require changes the template of pods that rely on Prebind: the policy selects them, Prebind rejects their binds if the plugin policy
// is off, and their containers and init containers have the variable RACK. It replaces a variable with that name, and removes a rack that
// a user has written into the template: it would stay if the pod is bound without Prebind. For local volumes, add a node affinity, as in
// docs/manifests/kafka.yaml.
func Require(template *corev1.PodTemplateSpec) {
	metav1.SetMetaDataLabel(&template.ObjectMeta, "rack-awareness", "true")
	metav1.SetMetaDataAnnotation(&template.ObjectMeta, requireAnnotation, "policy")
	delete(template.Annotations, rackAnnotation)
	rack := corev1.EnvVar{Name: "RACK", ValueFrom: &corev1.EnvVarSource{
		FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.annotations['" + rackAnnotation + "']"},
	}}
	for _, containers := range [][]corev1.Container{template.Spec.InitContainers, template.Spec.Containers} {
		for i := range containers {
			c := &containers[i]
			others := slices.DeleteFunc(c.Env, func(v corev1.EnvVar) bool { return v.Name == rack.Name })
			c.Env = slices.Insert(others, 0, rack) // First, so that the others can refer to it.
		}
	}
}

// Rack returns the rack of a pod that relies on Prebind, or "" before it has a node. It is an error if the pod was bound without
// Prebind. Such a pod never gets a rack, also if its containers restart: delete it.
func Rack(pod *corev1.Pod) (string, error) {
	rack := pod.Annotations[rackAnnotation]
	switch {
	case pod.Spec.NodeName == "":
		return "", nil // A user can have set the annotation.
	case rack == "":
		return "", fmt.Errorf("pod %s/%s was bound without a rack; delete it", pod.Namespace, pod.Name)
	default:
		return rack, nil
	}
}

// Bind replaces a scheduler and Prebind in tests with envtest or kind. The pod needs a spec.schedulerName without a scheduler.
func Bind(ctx context.Context, c client.Client, pod *corev1.Pod, node, rack string) error {
	return c.SubResource("binding").Create(ctx, pod, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{rackAnnotation: rack}},
		Target:     corev1.ObjectReference{Kind: "Node", Name: node},
	})
}
