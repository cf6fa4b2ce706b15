// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
)

// passes returns whether the API server rejects the Binding with its own message: the target is not a node, or the pod cannot exist. An empty
// kind is a Node. The name of the pod must be that of the URL.
func passes(r Request) bool {
	target := r.Binding.Target
	return target.Name == "" || target.Kind != "" && target.Kind != "Node" || r.Binding.Name != r.Pod.Name ||
		len(apivalidation.NameIsDNSSubdomain(r.Pod.Name, false)) > 0 || len(apivalidation.ValidateNamespaceName(r.Pod.Namespace, false)) > 0
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

// Where what is wrong with the merged metadata is.
var (
	annotationsPath = field.NewPath("metadata", "annotations")
	labelsPath      = field.NewPath("metadata", "labels")
)

// maxLabels is the maximum total size of the labels of a Binding, in bytes. The API server limits only their number and length, by
// the size of the request.
const maxLabels = 64 << 10

// maxProblems is the maximum number of problems of a Binding that an answer lists.
const maxProblems = 24

// attemptRoom has the size of the annotation that a bind gets if a plugin writes.
var attemptRoom = map[string]string{framework.AttemptAnnotation: strings.Repeat("-", 64)}

// guardMetadata checks the keys and labels that the API server merges from the Binding into the pod. The API server does not check them: it
// stores the pod, and then rejects every later update, the kubelet's included. The metadata of the pod is valid already.
func guardMetadata(pod *corev1.Pod, b *corev1.Binding) *framework.Error {
	var problems field.ErrorList
	for key := range b.Annotations {
		if len(problems) >= maxProblems {
			break
		}
		if _, valid := pod.Annotations[key]; !valid {
			problems = append(problems, apivalidation.ValidateAnnotations(map[string]string{key: ""}, annotationsPath)...)
		}
	}
	if sizeOf(b.Labels) > maxLabels {
		problems = append(problems, field.TooLong(labelsPath, "", maxLabels))
	} else {
		problems = append(problems, metav1validation.ValidateLabels(b.Labels, labelsPath)...)
	}
	return invalidMetadata(pod, problems, correctBinding)
}

// guardSize checks the size of the annotations of the pod after the API server has merged those of the Binding and the added ones, like
// guardMetadata. Later annotations replace earlier ones.
func guardSize(pod *corev1.Pod, b *corev1.Binding, added map[string]string) *framework.Error {
	const limit = apivalidation.TotalAnnotationSizeLimitB
	// Most binds need no merge: without it, annotations that replace others count twice.
	if sizeOf(pod.Annotations, b.Annotations, added) <= limit {
		return nil
	}
	merged := make(map[string]string, len(pod.Annotations)+len(b.Annotations)+len(added))
	maps.Copy(merged, pod.Annotations)
	maps.Copy(merged, b.Annotations)
	if sizeOf(merged) > limit {
		return invalidMetadata(pod, field.ErrorList{field.TooLong(annotationsPath, "", limit)}, correctBinding)
	}
	maps.Copy(merged, added)
	if sizeOf(merged) <= limit {
		return nil
	}
	// On another node, Prebind can add less.
	return framework.Refuse(podObject(client.ObjectKeyFromObject(pod)), "with the annotations that Prebind adds, those of the pod exceed %d bytes", limit).
		Advise("shorten the annotations of the pod or the Binding, enable fewer mutators, or choose another node")
}

const correctBinding = "correct the Binding, because the API server rejects every update of a pod with such metadata"

// invalidMetadata returns the rejection of a Binding with the problems, or nil if there are none.
func invalidMetadata(pod *corev1.Pod, problems field.ErrorList, advice string) *framework.Error {
	if len(problems) == 0 {
		return nil
	}
	// The cost of the text grows with the square of their number, and a client controls it.
	problems = problems[:min(len(problems), maxProblems)]
	err := framework.Invalid(podObject(client.ObjectKeyFromObject(pod)),
		"invalid metadata after the merge with the Binding: "+short(problems.ToAggregate().Error())).Advise("%s", advice)
	for _, p := range problems {
		err.Fields = append(err.Fields, framework.Field{Path: short(p.Field), Message: short(p.ErrorBody())})
	}
	return err
}

// sizeOf returns the size of all keys and values, in bytes, like apimachinery's ValidateAnnotationsSize.
func sizeOf(all ...map[string]string) int {
	size := 0
	for _, m := range all {
		for key, value := range m {
			size += len(key) + len(value)
		}
	}
	return size
}
