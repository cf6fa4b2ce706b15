// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/prebind/prebind/config/v1alpha1"
	"github.com/prebind/prebind/internal/text"
)

// Parameter is an annotation that a plugin reads.
type Parameter struct {
	// Annotation is the complete key.
	Annotation string
	Value      string
	// On is the object with the annotation: the Binding or the Pod.
	On Object
}

const (
	// maxKey exceeds the length of every valid annotation key, in bytes.
	maxKey = 320
	// maxListed is the maximum number of annotations in an error.
	maxListed = 5
)

// Field returns the field of a KindInvalid for the parameter, with the message.
func (p Parameter) Field(message string) Field {
	return Field{Path: "metadata.annotations[" + text.Clip(p.Annotation, maxKey) + "]", Message: message}
}

// Invalid returns a KindInvalid about the annotation. The message completes a sentence that
// begins with the annotation's key, such as "must be a positive duration".
func (p Parameter) Invalid(format string, args ...any) *Error {
	message := fmt.Sprintf(format, args...)
	return Invalid(p.On, "annotation "+text.Clip(p.Annotation, maxKey)+" "+message, p.Field(message)).Advise("correct the annotation")
}

// InvalidParameters returns one error for all errors of Parameter.Invalid, of which there is at least one.
func InvalidParameters(all []*Error) *Error {
	joined := *all[0]
	joined.Fields = nil
	var messages []string
	for i, e := range all {
		messages = append(messages, e.Message)
		if i < maxListed {
			joined.Fields = append(joined.Fields, e.Fields...)
		}
	}
	joined.Message = strings.Join(text.Shorten(messages, maxListed), "; ")
	return &joined
}

// Parameter returns the annotation <plugin>.prebind.dev/<key> of the Binding, or else of the pod. If neither has the
// annotation, the Value is empty and On is the Binding.
func (bc *BindContext) Parameter(plugin, key string) Parameter {
	if p, ok := Parameters(plugin, bc.Binding, bc.Pod)[key]; ok {
		return p
	}
	return Parameter{
		Annotation: plugin + "." + v1alpha1.Domain + "/" + key,
		On:         Object{Kind: "Binding", Namespace: bc.Pod.Namespace, Name: bc.Pod.Name},
	}
}

// Parameters returns the annotations <plugin>.prebind.dev/<key> of the Binding and of the pod, by key. The Binding's value
// wins. The caller owns the map.
func Parameters(plugin string, binding *corev1.Binding, pod *corev1.Pod) map[string]Parameter {
	prefix := plugin + "." + v1alpha1.Domain + "/"
	found := map[string]Parameter{}
	collect := func(kind string, annotations map[string]string) {
		for annotation, value := range annotations {
			if key, ok := strings.CutPrefix(annotation, prefix); ok {
				found[key] = Parameter{
					Annotation: annotation, Value: value,
					On: Object{Kind: kind, Namespace: pod.Namespace, Name: pod.Name},
				}
			}
		}
	}
	collect("Pod", pod.Annotations)
	collect("Binding", binding.Annotations)
	return found
}

// Binder is the name of Prebind itself in messages and annotation keys. No plugin and no
// mutator can have it.
const Binder = "binder"

// AttemptAnnotation is the key of the annotation with which a bound pod names the attempt
// that bound it.
const AttemptAnnotation = Binder + "." + v1alpha1.Domain + "/attempt"
