// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// Kind tells what a failure means to the client that posted the Binding.
type Kind string

const (
	// KindWait is not yet: the same Binding will do later. The client repeats it.
	KindWait Kind = "waiting"
	// KindRefuse is never on this node, or against the rules. The scheduler
	// chooses another node.
	KindRefuse Kind = "refused"
	// KindStale is a decision about a pod that is no longer so: another UID or
	// resourceVersion, terminating, bound elsewhere. The scheduler drops it.
	KindStale Kind = "stale"
	// KindInvalid is a Binding that would leave an object behind that the API
	// server can store but never update again.
	KindInvalid Kind = "invalid"
	// KindInternal is Prebind's own failure.
	KindInternal Kind = "internal"
)

// Object names the thing that an error or a wait is about. The zero Object
// names none.
type Object struct {
	// Kind as in a manifest, such as PersistentVolumeClaim.
	Kind string
	// Namespace is empty for cluster-scoped objects.
	Namespace string
	Name      string
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

// Error is an answer to the client: of which kind, by which plugin, about which
// object, what happened and what to do.
type Error struct {
	// Kind is never empty.
	Kind Kind
	// Plugin, mutator or "binder" for the engine's own guards. A plugin may leave
	// it empty: the engine fills in the name.
	Plugin string
	Object Object
	// Message says what happened in a sentence without a full stop.
	Message string
	// Advice says what the reader can do, in the same form; it may be empty.
	Advice string
	// Fields name the invalid fields of a KindInvalid.
	Fields []Field
	cause  error
}

// Field is one invalid field of the Binding.
type Field struct {
	// Path is such as metadata.annotations[Bad Key].
	Path    string
	Message string
}

// Error is one line with all of it.
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

// Unwrap returns the error that caused this one, if any.
func (e *Error) Unwrap() error { return e.cause }

// Because keeps the cause for errors.Is and errors.As and returns e.
func (e *Error) Because(cause error) *Error {
	e.cause = cause
	return e
}

// Advise adds what the reader can do and returns e.
func (e *Error) Advise(format string, args ...any) *Error {
	e.Advice = fmt.Sprintf(format, args...)
	return e
}

// Refuse makes a KindRefuse about the object. It is final for this bind, not for the pod: the
// scheduler schedules the pod again, and can choose the same node.
func Refuse(object Object, format string, args ...any) *Error {
	return &Error{Kind: KindRefuse, Object: object, Message: fmt.Sprintf(format, args...)}
}

// Wait makes a KindWait about the object: the client repeats the Binding, and the bind starts
// again. To wait within a bind, return a Waiting from a Look instead.
func Wait(object Object, format string, args ...any) *Error {
	return &Error{Kind: KindWait, Object: object, Message: fmt.Sprintf(format, args...)}
}

// Stale makes a KindStale about the object.
func Stale(object Object, format string, args ...any) *Error {
	return &Error{Kind: KindStale, Object: object, Message: fmt.Sprintf(format, args...)}
}

// Invalid makes a KindInvalid about the object, of the fields that are wrong.
func Invalid(object Object, message string, fields ...Field) *Error {
	return &Error{Kind: KindInvalid, Object: object, Message: message, Fields: fields}
}

// Internal makes a KindInternal of the cause.
func Internal(object Object, cause error) *Error {
	return &Error{Kind: KindInternal, Object: object, Message: cause.Error(), cause: cause}
}

// FromAPI makes an answer of an API server's error on the object: one that a
// later repetition can get over is KindWait (a conflict, an API server that is
// slow, overloaded or restarting, the end of the call that asked), every other is
// KindInternal.
func FromAPI(object Object, doing string, err error) *Error {
	e := Internal(object, fmt.Errorf("%s: %w", doing, err))
	if apierrors.IsConflict(err) || passing(err) {
		e.Kind = KindWait
	}
	return e
}

// passing says whether the API server could not answer this time. A context that has
// ended is no failure of the API server's or of Prebind's.
func passing(err error) bool {
	return apierrors.IsTooManyRequests(err) || apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) ||
		apierrors.IsServiceUnavailable(err) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) ||
		utilnet.IsConnectionRefused(err) || utilnet.IsConnectionReset(err) || utilnet.IsProbableEOF(err) ||
		utilnet.IsHTTP2ConnectionLost(err) || utilnet.IsTimeout(err)
}

// AsError returns err as an *Error that names the plugin. An error of any other
// type becomes KindInternal. It returns nil for nil.
func AsError(plugin string, err error) *Error {
	if err == nil {
		return nil
	}
	var e *Error
	if !errors.As(err, &e) || e == nil {
		e = Internal(Object{}, err)
	}
	named := *e
	if named.Kind == "" {
		named.Kind = KindInternal
	}
	if named.Plugin == "" {
		named.Plugin = plugin
	}
	return &named
}

// IsKind says whether err is, or wraps, an *Error of this kind.
func IsKind(err error, kind Kind) bool {
	var e *Error
	return errors.As(err, &e) && e != nil && e.Kind == kind
}
