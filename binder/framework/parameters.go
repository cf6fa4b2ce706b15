// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Parameter is what a plugin was told by one annotation.
type Parameter struct {
	// Annotation is the whole key.
	Annotation string
	Value      string
	// On is the object that carries it: the Binding or the Pod.
	On Object
}

// Field names the parameter in a KindInvalid; message says what is wrong.
func (p Parameter) Field(message string) Field {
	return Field{Path: "metadata.annotations[" + p.Annotation + "]", Message: message}
}

// Parameters returns the annotations <plugin>.<domain>/<key> of the Binding and,
// where the source says so, of the pod, by key. The Binding's value wins. The
// caller owns the map, which is nil where there are none.
func Parameters(domain, plugin string, source Source, binding *corev1.Binding, pod *corev1.Pod) map[string]Parameter {
	prefix := plugin + "." + domain + "/"
	var found map[string]Parameter
	collect := func(kind string, annotations map[string]string) {
		for annotation, value := range annotations {
			if key, ok := strings.CutPrefix(annotation, prefix); ok {
				if found == nil {
					found = map[string]Parameter{}
				}
				found[key] = Parameter{
					Annotation: annotation, Value: value,
					On: Object{Kind: kind, Namespace: pod.Namespace, Name: pod.Name},
				}
			}
		}
	}
	if source == ByBindingOrPod {
		collect("Pod", pod.Annotations)
	}
	collect("Binding", binding.Annotations)
	return found
}

// AttemptAnnotation is where a bound pod tells which attempt bound it.
func AttemptAnnotation(domain string) string { return "binder." + domain + "/attempt" }
