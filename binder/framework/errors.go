// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Kind is the meaning of an error for the client that posted the Binding.
type Kind string

const (
	// KindWait means not yet. The client repeats the Binding.
	KindWait Kind = "waiting"
	// KindRefuse means not on this node now. The scheduler schedules the pod again.
	KindRefuse Kind = "refused"
	// KindStale means that the decision is out of date: the pod has another resourceVersion,
	// does not exist, or changed during the bind. The scheduler drops it.
	KindStale Kind = "stale"
	// KindInvalid means that the Binding or an annotation is invalid.
	KindInvalid Kind = "invalid"
	// KindInternal means that Prebind or a plugin failed.
	KindInternal Kind = "internal"
)

// Object identifies the object of an error or a wait. The zero Object means none.
type Object struct {
	// Kind as in a manifest, such as PersistentVolumeClaim.
	Kind string
	// Namespace is empty for cluster-scoped objects.
	Namespace string
	Name      string
}

// ObjectOf identifies an object by its type and name.
func ObjectOf(o client.Object) Object {
	return Object{Kind: KindOf(o), Namespace: o.GetNamespace(), Name: o.GetName()}
}

// String is "Kind namespace/name", or "" for the zero Object.
func (o Object) String() string {
	switch {
	case o == Object{}:
		return ""
	case o.Namespace == "":
		return o.Kind + " " + o.Name
	default:
		return o.Kind + " " + o.Namespace + "/" + o.Name
	}
}

// Error is an error that the client receives.
type Error struct {
	// Kind is never empty.
	Kind Kind
	// Plugin is the name of the plugin or mutator, or "binder". The engine sets it if it is
	// empty.
	Plugin string
	Object Object
	// Message describes the problem in lower case, without a period.
	Message string
	// Advice describes the remedy in the same form. It may be empty.
	Advice string
	// Fields are the invalid fields of a KindInvalid.
	Fields []Field
	cause  error
}

// Field is an invalid field.
type Field struct {
	// Path of the field, such as metadata.annotations[Bad Key].
	Path    string
	Message string
}

// Error returns "plugin: object: message; advice".
func (e *Error) Error() string {
	var b strings.Builder
	if e.Plugin != "" {
		b.WriteString(e.Plugin + ": ")
	}
	if object := e.Object.String(); object != "" {
		b.WriteString(object + ": ")
	}
	b.WriteString(e.Message)
	if e.Advice != "" {
		b.WriteString("; " + e.Advice)
	}
	return b.String()
}

// Unwrap returns the cause, or nil.
func (e *Error) Unwrap() error { return e.cause }

// Because sets the cause for errors.Is and errors.As, and returns e.
func (e *Error) Because(cause error) *Error {
	e.cause = cause
	return e
}

// Advise sets the advice and returns e.
func (e *Error) Advise(format string, args ...any) *Error {
	e.Advice = fmt.Sprintf(format, args...)
	return e
}

// Refuse returns a KindRefuse about the object. It is final for this bind, not for the pod: the
// scheduler schedules the pod again, and can choose the same node.
func Refuse(object Object, format string, args ...any) *Error {
	return &Error{Kind: KindRefuse, Object: object, Message: fmt.Sprintf(format, args...)}
}

// NotYet returns a KindWait about the object. From PreBind, it means that the bind waits for a change. From
// PreFlight, return a Verdict with a Wait instead.
func NotYet(object Object, format string, args ...any) *Error {
	return &Error{Kind: KindWait, Object: object, Message: fmt.Sprintf(format, args...)}
}

// Stale returns a KindStale about the object.
func Stale(object Object, format string, args ...any) *Error {
	return &Error{Kind: KindStale, Object: object, Message: fmt.Sprintf(format, args...)}
}

// Invalid returns a KindInvalid about the object, with the invalid fields.
func Invalid(object Object, message string, fields ...Field) *Error {
	return &Error{Kind: KindInvalid, Object: object, Message: message, Fields: fields}
}

// Internal returns a KindInternal with the cause.
func Internal(object Object, cause error) *Error {
	return &Error{Kind: KindInternal, Object: object, Message: cause.Error(), cause: cause}
}

// FromAPI returns an error for a failed request to the API server. It is a KindWait if a retry
// can succeed: after a conflict, also with an object that already exists, if the API server is slow,
// overloaded, or restarting, and if the context ended. Otherwise it is a KindInternal.
func FromAPI(object Object, doing string, err error) *Error {
	e := Internal(object, fmt.Errorf("%s: %w", doing, err))
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || passing(err) {
		e.Kind = KindWait
	}
	return e
}

// passing returns whether the failure is temporary. The end of a context counts as temporary, and so does a connection that cannot be opened,
// such as to the address of a machine that is gone.
func passing(err error) bool {
	var dial *net.OpError
	return errors.As(err, &dial) && dial.Op == "dial" || electing(err) ||
		apierrors.IsTooManyRequests(err) || apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) ||
		apierrors.IsServiceUnavailable(err) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) ||
		utilnet.IsConnectionRefused(err) || utilnet.IsConnectionReset(err) || utilnet.IsProbableEOF(err) ||
		utilnet.IsHTTP2ConnectionLost(err) || utilnet.IsTimeout(err)
}

// electing returns whether etcd elects a leader or restarts. The API server returns its errors as 500 without a reason.
func electing(err error) bool {
	text := err.Error()
	return strings.Contains(text, "etcdserver: leader changed") || strings.Contains(text, "etcdserver: request timed out") ||
		strings.Contains(text, "rpc error: code = Unavailable")
}

// AsError returns err as an *Error with the name of the plugin. An error of another type becomes
// a KindInternal. AsError returns nil for nil.
func AsError(plugin string, err error) *Error {
	if err == nil {
		return nil
	}
	var e *Error
	if !errors.As(err, &e) || e == nil {
		e = Internal(Object{}, err)
	}
	named := *e
	named.Kind, named.Plugin = cmp.Or(named.Kind, KindInternal), cmp.Or(named.Plugin, plugin)
	return &named
}
