// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"fmt"
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

// Invalid returns a KindInvalid about the annotation. The message completes a sentence that
// begins with the annotation's key, such as "must be a positive duration".
func (p Parameter) Invalid(format string, args ...any) *Error {
	message := fmt.Sprintf(format, args...)
	return Invalid(p.On, "annotation "+p.Annotation+" "+message, p.Field(message)).Advise("correct the annotation")
}

// Parameters returns the annotations <plugin>.prebind.dev/<key> of the Binding and, if
// the source includes it, of the pod, by key. The Binding's value wins. The caller owns
// the map, which is nil if there are none.
func Parameters(plugin string, source Source, binding *corev1.Binding, pod *corev1.Pod) map[string]Parameter {
	prefix := plugin + "." + Domain + "/"
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

// Binder is the name under which Prebind's own decisions are reported and its own
// annotations stand. No plugin and no mutator can have it.
const Binder = "binder"

// AttemptAnnotation is the key of the annotation of a bound pod that names the attempt
// that bound it.
const AttemptAnnotation = Binder + "." + Domain + "/attempt"
