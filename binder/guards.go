// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/prebind/prebind/binder/framework"
)

// targetsNode returns whether the target of the Binding is a node. The API server treats an
// empty kind as Node and rejects every other target.
func targetsNode(b *corev1.Binding) bool {
	return b.Target.Name != "" && (b.Target.Kind == "" || b.Target.Kind == "Node")
}

// namesPod returns whether the Binding names a pod that can exist. The API server rejects names
// that differ from the URL, and invalid names of pods and namespaces.
func namesPod(r Request) bool {
	return r.Binding.Name == r.Pod.Name && len(apivalidation.NameIsDNSSubdomain(r.Pod.Name, false)) == 0 &&
		len(apivalidation.ValidateNamespaceName(r.Pod.Namespace, false)) == 0
}

// guardTarget checks that the target is a valid node name. The API server accepts every name.
func guardTarget(b *corev1.Binding) *framework.Error {
	problems := apivalidation.NameIsDNSSubdomain(b.Target.Name, false)
	if len(problems) == 0 {
		return nil
	}
	err := framework.Refuse(framework.Object{Kind: "Node", Name: short(b.Target.Name)}, "invalid name: %s", problems[0]).Advise("choose another node")
	err.Plugin = framework.Binder
	return err
}

// unbindable returns whether the API server rejects the Binding because of the state of the pod. It has its own message.
func unbindable(pod *corev1.Pod, b *corev1.Binding) bool {
	return b.UID != "" && b.UID != pod.UID || pod.DeletionTimestamp != nil || pod.Spec.NodeName != "" || len(pod.Spec.SchedulingGates) > 0
}

// rejectedBy returns the decision on a Binding of an unbindable pod: the API server rejects it. The Binding is pinned to this pod,
// because the pod may be replaced before the API server reads it, and no plugin has checked the new pod. A gate can be removed,
// so a gated pod is pinned in this version. All other states are final.
func rejectedBy(pod *corev1.Pod, b *corev1.Binding) Decision {
	d := Decision{PassThrough: true}
	if b.UID == "" {
		d.UID = pod.UID
	}
	if len(pod.Spec.SchedulingGates) > 0 {
		d.ResourceVersion = pod.ResourceVersion
	}
	return d
}

// guardVersion checks that the pod has the version that the Binding names, if any. The API server checks it as well, but only after the
// plugins would have had their side effects.
func guardVersion(pod *corev1.Pod, b *corev1.Binding) *framework.Error {
	if b.ResourceVersion == "" || b.ResourceVersion == pod.ResourceVersion {
		return nil
	}
	err := framework.Stale(framework.Object{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name},
		"has resourceVersion %s, but the Binding requires %s", pod.ResourceVersion, short(b.ResourceVersion)).Advise("schedule the changed pod")
	err.Plugin = framework.Binder
	return err
}

// Where what is wrong with the merged metadata is.
var (
	annotationsPath = field.NewPath("metadata", "annotations")
	labelsPath      = field.NewPath("metadata", "labels")
)

// maxLabels is the maximum total size of the labels of a Binding, in bytes. The API server limits only their number and length, by
// the size of the request.
const maxLabels = 64 << 10

func sizeOf(labels map[string]string) int {
	size := 0
	for key, value := range labels {
		size += len(key) + len(value)
	}
	return size
}

// guardMerged checks what the pod will carry once the API server has merged the
// Binding into it. The API server does not: it stores what it is given, and then
// refuses every later update of that pod, the kubelet's included. There must be room
// for the annotations that may come, too.
func guardMerged(pod *corev1.Pod, b *corev1.Binding, annotations, labels, mayCome map[string]string) *framework.Error {
	sources := []map[string]string{pod.Annotations, b.Annotations, mayCome, annotations}
	problems := validKeys.check(sources...)
	fits := fitTogether(sources...)
	if !fits {
		problems = append(problems, field.TooLong(annotationsPath, "", apivalidation.TotalAnnotationSizeLimitB))
	}
	// The pod's own labels are valid already.
	if sizeOf(b.Labels) > maxLabels {
		problems = append(problems, field.TooLong(labelsPath, "", maxLabels))
	} else {
		problems = append(problems, metav1validation.ValidateLabels(b.Labels, labelsPath)...)
	}
	problems = append(problems, metav1validation.ValidateLabels(labels, labelsPath)...)
	if len(problems) == 0 {
		return nil
	}
	advice := "correct the Binding, because the API server rejects every update of a pod with such metadata"
	if len(annotations)+len(mayCome) > 0 && !fits && guardMerged(pod, b, nil, nil, nil) == nil {
		advice = "shorten the annotations of the pod or the Binding, or enable fewer mutators, because the annotations that Prebind adds do not fit"
	}
	err := &framework.Error{
		Kind:    framework.KindInvalid,
		Plugin:  framework.Binder,
		Object:  framework.Object{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name},
		Message: "invalid metadata after the merge with the Binding: " + short(problems.ToAggregate().Error()),
		Advice:  advice,
	}
	for _, p := range problems {
		err.Fields = append(err.Fields, framework.Field{Path: short(p.Field), Message: short(p.ErrorBody())})
	}
	return err
}
