// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package operator shows how an operator uses the racks of Prebind's policy rack-awareness: it detects Prebind, changes the template of
// its pods, and finds pods without a rack. It is code to copy; docs/for-operators.md explains the steps.
package operator

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// policyName is the name of the policy. For another policy, change also the markers of Installed, and the label if necessary.
	policyName = "rack-awareness"
	// selectingLabel of a pod selects it for the policy.
	selectingLabel = "rack-awareness"
	// rackAnnotation and dataCenterAnnotation are the annotations that the policy writes.
	rackAnnotation       = policyName + ".policy.prebind.dev/rack"
	dataCenterAnnotation = policyName + ".policy.prebind.dev/datacenter"
	// policyPlugin is the plugin that applies policies.
	policyPlugin = "policy"
	// requireAnnotation is RequireAnnotation of the module github.com/prebind/prebind/client.
	requireAnnotation = "binder.prebind.dev/require"
	// decisionAnnotation is on the custom resource: whether its pods rely on Prebind.
	decisionAnnotation = "store.example.com/prebind"
)

// Installed returns whether Prebind is registered and has the policy, and the policy is not in mode Audit. This shows neither the mode of
// Prebind in the namespace of the pods nor its health, and Helm keeps the policy after an uninstallation. The mapper is GetRESTMapper of the manager, which finds the
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
	}{{policyName, policy}, {"prebind", &admissionregistrationv1.MutatingWebhookConfiguration{}}} {
		if err := reader.Get(ctx, client.ObjectKey{Name: o.name}, o.object); err != nil {
			return false, client.IgnoreNotFound(err)
		}
	}
	mode, _, err := unstructured.NestedString(policy.Object, "spec", "mode")
	return mode != "Audit", err
}

// Decide returns whether the pods of the custom resource rely on Prebind. The user decides, before the first pod, because a pod that relies
// on Prebind does not start without it: if Installed, propose it in a condition, and if not, report a decision for it. Without a decision,
// pods use the fallback, except those of an existing template that Require has changed: another one restarts them. The template is nil if
// the resource has no pods. Unlike a status, an annotation is part of a backup.
func Decide(resource metav1.Object, existing *corev1.PodTemplateSpec) (bool, error) {
	if decision, ok := resource.GetAnnotations()[decisionAnnotation]; ok {
		return strconv.ParseBool(decision)
	}
	return existing != nil && existing.Labels[selectingLabel] == "true" && slices.Contains(required(existing.Annotations), policyPlugin), nil
}

// Require changes the template of pods that rely on Prebind: the policy selects them, Prebind rejects their binds if the plugin policy
// is off, and their containers and init containers have the variable RACK. It keeps other plugins that a user requires, replaces a
// variable with that name, and removes the values that a user has written into the template: they would stay if the pod is bound without
// Prebind. Before the call, add the init container rack-check of docs/manifests/kafka.yaml, and for local volumes its node affinity.
func Require(template *corev1.PodTemplateSpec) {
	metav1.SetMetaDataLabel(&template.ObjectMeta, selectingLabel, "true")
	plugins := required(template.Annotations)
	if !slices.Contains(plugins, policyPlugin) {
		plugins = append(plugins, policyPlugin)
	}
	metav1.SetMetaDataAnnotation(&template.ObjectMeta, requireAnnotation, strings.Join(plugins, ","))
	delete(template.Annotations, rackAnnotation)
	delete(template.Annotations, dataCenterAnnotation)
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

// required returns the plugins that the annotations require.
func required(annotations map[string]string) []string {
	return strings.FieldsFunc(annotations[requireAnnotation], func(r rune) bool { return r == ',' || r == ' ' })
}

// Rack returns the rack of a pod of a resource that relies on Prebind (Decide). It returns "" before the pod has a node, and for pods of a template that Require
// did not change. It is an error if the pod was bound without Prebind. Such a pod never gets a rack, also if its containers restart:
// delete it.
func Rack(pod *corev1.Pod) (string, error) {
	rack := pod.Annotations[rackAnnotation]
	switch {
	case pod.Spec.NodeName == "" || !slices.Contains(required(pod.Annotations), policyPlugin):
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
