// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package operator shows how an operator uses the racks of Prebind's policy rack-awareness: it detects Prebind, changes the template of
// its pods, with a fallback, and replaces pods without a rack. It is code to copy; docs/for-operators.md explains the steps.
package operator

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
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
// is off, their containers and init containers have the variable RACK, and the init container rack-check stops a pod without a rack. The
// image has a shell, such as busybox. It keeps other plugins that a user requires, replaces a variable with that name, and removes the
// values that a user has written into the template: they would stay if the pod is bound without Prebind. For local volumes, add the node affinity of docs/manifests/kafka.yaml.
func Require(template *corev1.PodTemplateSpec, image string) {
	metav1.SetMetaDataLabel(&template.ObjectMeta, selectingLabel, "true")
	plugins := required(template.Annotations)
	if !slices.Contains(plugins, policyPlugin) {
		plugins = append(plugins, policyPlugin)
	}
	metav1.SetMetaDataAnnotation(&template.ObjectMeta, requireAnnotation, strings.Join(plugins, ","))
	delete(template.Annotations, rackAnnotation)
	delete(template.Annotations, dataCenterAnnotation)
	first(template, corev1.Container{
		Name: "rack-check", Image: image,
		Command:   []string{"sh", "-c", `[ -n "$RACK" ] || { echo "bound without Prebind: delete this pod"; exit 1; }`},
		Resources: resources("16Mi", "16Mi"), SecurityContext: restricted(),
	})
	rack := corev1.EnvVar{Name: "RACK", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: rackPath}}}
	for _, containers := range [][]corev1.Container{template.Spec.InitContainers, template.Spec.Containers} {
		for i := range containers {
			c := &containers[i]
			others := slices.DeleteFunc(c.Env, func(v corev1.EnvVar) bool { return v.Name == rack.Name })
			c.Env = slices.Insert(others, 0, rack) // First, so that the others can refer to it.
		}
	}
}

// rackPath is the annotation in the downward API.
const rackPath = "metadata.annotations['" + rackAnnotation + "']"

// findRack writes the rack of the node to a file: the annotation, or else the labels that the policy uses.
const findRack = `# After a reboot of the node, the file of the first start still exists.
if [ -s /etc/rack/rack ]; then exit; fi
rack=$(cat /etc/podinfo/rack)
label() { kubectl get node "$NODE" -o go-template="{{with index .metadata.labels \"$1\"}}{{.}}{{end}}"; }
[ -n "$rack" ] || rack=$(label example.com/rack)
[ -n "$rack" ] || rack=$(label topology.kubernetes.io/zone)
# If the node has neither label, the kubelet restarts the init container until it has. With Prebind, the policy rejects the node.
[ -n "$rack" ]
echo "$rack" >/etc/rack/rack
`

// Fallback changes the template of pods that do not rely on Prebind: the file /etc/rack/rack of their containers has the rack. The image has a
// shell and kubectl. It does not change the service account of the pods, which must be permitted to get nodes; see docs/manifests/rack-fallback.yaml.
func Fallback(template *corev1.PodTemplateSpec, image string) {
	metav1.SetMetaDataLabel(&template.ObjectMeta, selectingLabel, "true")
	const info, file = "podinfo", "rack"
	first(template, corev1.Container{
		Name: "rack", Image: image, Command: []string{"sh", "-ec"}, Args: []string{findRack},
		Env: []corev1.EnvVar{
			{Name: "NODE", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "spec.nodeName"}}},
			{Name: "HOME", Value: "/etc/rack"}, // For the cache of kubectl.
		},
		Resources: resources("64Mi", "128Mi"), SecurityContext: restricted(),
		VolumeMounts: []corev1.VolumeMount{{Name: info, MountPath: "/etc/podinfo", ReadOnly: true}, {Name: file, MountPath: "/etc/rack"}},
	})
	template.Spec.InitContainers[0].SecurityContext.ReadOnlyRootFilesystem = new(true)
	for i := range template.Spec.Containers {
		c := &template.Spec.Containers[i]
		c.VolumeMounts = append(slices.DeleteFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == file }),
			corev1.VolumeMount{Name: file, MountPath: "/etc/rack", ReadOnly: true})
	}
	template.Spec.Volumes = append(slices.DeleteFunc(template.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == info || v.Name == file }),
		corev1.Volume{Name: info, VolumeSource: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: []corev1.DownwardAPIVolumeFile{
			{Path: "rack", FieldRef: &corev1.ObjectFieldSelector{FieldPath: rackPath}},
		}}}},
		corev1.Volume{Name: file, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
}

// first makes the container the first init container. It replaces one with its name.
func first(template *corev1.PodTemplateSpec, c corev1.Container) {
	others := slices.DeleteFunc(template.Spec.InitContainers, func(o corev1.Container) bool { return o.Name == c.Name })
	template.Spec.InitContainers = slices.Insert(others, 0, c)
}

func resources(memory, limit string) corev1.ResourceRequirements {
	return corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse(memory)},
		Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(limit)},
	}
}

// restricted is the security context of a container that the restricted Pod Security Standard allows.
func restricted() *corev1.SecurityContext {
	return &corev1.SecurityContext{
		AllowPrivilegeEscalation: new(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
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

// Replace deletes a pod that was bound without a rack, once. The parameter replaced is the UID that the last call for a pod of this name
// returned, which the operator stores, for example in the status of its resource; "" is none. Replace deletes only a pod whose UID is stored: call it
// again. If the pod that replaces it also lacks a rack, the error says so: report it in a condition, because another pod would not help.
func Replace(ctx context.Context, c client.Writer, pod *corev1.Pod, replaced types.UID) (types.UID, error) {
	rack, err := Rack(pod)
	switch {
	case err == nil && rack == "": // It has no node yet.
		return replaced, nil
	case err == nil:
		return "", nil
	case replaced == "": // If the UID is lost after the deletion, the next pod is deleted as well.
		return pod.UID, nil
	case replaced != pod.UID:
		return replaced, fmt.Errorf("%w, after its cause is removed; the pod before it had none either", err)
	}
	err = c.Delete(ctx, pod, client.Preconditions{UID: &pod.UID})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) { // Another call has deleted it.
		err = nil
	}
	return pod.UID, err
}

// Bind replaces a scheduler and Prebind in tests with envtest or kind. The pod needs a spec.schedulerName without a scheduler.
func Bind(ctx context.Context, c client.Client, pod *corev1.Pod, node, rack string) error {
	return c.SubResource("binding").Create(ctx, pod, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{rackAnnotation: rack}},
		Target:     corev1.ObjectReference{Kind: "Node", Name: node},
	})
}
