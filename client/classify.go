// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"errors"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// deniedBy is how the API server begins the message of a denial by Prebind.
const deniedBy = `admission webhook "` + WebhookName + `" denied the request: `

// Answer is Prebind's answer to a Binding. The zero Answer means that Prebind did not deny it.
type Answer struct {
	Kind Kind
	// Plugin is the name of the plugin or mutator that denied the Binding, or "binder" for Prebind itself.
	Plugin string
	// Object is the object of the denial. It is the zero Object if there is none.
	Object Object
	// Fields are the invalid fields of an Invalid answer.
	Fields []Field
	// Delay is the time after which a Waiting answer expects the next call, in whole seconds. An earlier call is allowed. A call
	// that is more than a minute late finds the bind rolled back. Delay is 0 for other kinds.
	Delay time.Duration
	// Message is the text for people: plugin, object, state and remedy on one line. Do not parse it.
	Message string
}

// Object identifies an object.
type Object struct {
	// Kind as in a manifest, such as PersistentVolumeClaim.
	Kind string
	// Namespace is empty for cluster-scoped objects.
	Namespace string
	Name      string
}

// Field is an invalid field.
type Field struct {
	// Path of the field, such as metadata.annotations[device.prebind.dev/gpu].
	Path    string
	Message string
}

// codes are the HTTP codes of the kinds.
var codes = map[int32]Kind{
	http.StatusTooManyRequests:     Waiting,
	http.StatusForbidden:           Refused,
	http.StatusNotFound:            Stale,
	http.StatusPreconditionFailed:  Stale,
	http.StatusUnprocessableEntity: Invalid,
	http.StatusInternalServerError: Internal,
}

// Classify returns the meaning of the error of a Binding. The error may wrap that of client-go. For nil, and for an error that
// is not a denial by Prebind, it returns the zero Answer. In particular, it does so for a 429 of API priority and fairness, and
// if the API server could not call Prebind. A code that this version does not know is Internal.
func Classify(err error) Answer {
	var api apierrors.APIStatus
	if !errors.As(err, &api) {
		return Answer{}
	}
	status := api.Status()
	message, denied := strings.CutPrefix(status.Message, deniedBy)
	if !denied {
		return Answer{}
	}
	a := Answer{Kind: Internal, Message: message}
	if kind, known := codes[status.Code]; known {
		a.Kind = kind
	}
	if status.Details == nil {
		return a
	}
	if a.Kind == Waiting {
		a.Delay = time.Duration(status.Details.RetryAfterSeconds) * time.Second
	}
	for _, cause := range status.Details.Causes {
		switch cause.Type {
		case CausePlugin:
			a.Plugin = cause.Message
		case CauseObject:
			a.Object = parseObject(cause.Message)
		case CauseField:
			a.Fields = append(a.Fields, Field{Path: cause.Field, Message: cause.Message})
		default: // A later version of Prebind can have more.
		}
	}
	return a
}

// parseObject parses "Kind namespace/name" and "Kind name".
func parseObject(text string) Object {
	kind, name, _ := strings.Cut(text, " ")
	if namespace, name, namespaced := strings.Cut(name, "/"); namespaced {
		return Object{Kind: kind, Namespace: namespace, Name: name}
	}
	return Object{Kind: kind, Name: name}
}
