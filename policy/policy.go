// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package policy compiles and evaluates BindPolicies. It does no I/O: the caller reads the objects that
// expressions use (Objects), and acts on the result.
//
// A policy is compiled once per generation (Compile). The compiled form is immutable and safe for
// concurrent use.
package policy

import (
	"context"
	"encoding/json"
	"math"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	kinds "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Schemas returns the OpenAPI schemas of kinds that are not compiled in. resolver.SchemaResolver of
// k8s.io/apiserver implements it.
type Schemas interface {
	ResolveSchema(kind kinds.GroupVersionKind) (*spec.Schema, error)
}

// Options are the options of Compile.
type Options struct {
	// KeyPrefixes are the prefixes of keys that policies may use in addition to their own, such as ray.io. A
	// prefix does not include its subdomains. "*.ray.io" includes all subdomains of ray.io, but not ray.io.
	// Prefixes of kubernetes.io, k8s.io and prebind.dev are never allowed.
	KeyPrefixes []string
	// Namespaced contains the scopes of kinds that are not built in, as far as they are known.
	Namespaced map[kinds.GroupVersionKind]bool
	// BindTimeout is --prebind-timeout. A wait with a longer timeout gets a warning. Zero means no such warnings.
	BindTimeout time.Duration
	// Schemas is used for warnings about custom resources. Nil means no such warnings.
	Schemas Schemas
	// TimeLimit of the expressions of a policy per evaluation, without reads. Zero means DefaultTimeLimit.
	TimeLimit time.Duration
	// Clock for TimeLimit. Nil means the real clock.
	Clock clock.WithDelayedExecution
}

// DefaultTimeLimit is far above the time that the cost limits allow for most expressions, also on a machine with a high
// load. It is for expressions whose cost is much too low.
const DefaultTimeLimit = time.Second

// Needs are the objects that a policy reads.
type Needs struct {
	// Claims says whether the policy uses the pod's claims.
	Claims bool
	// Resources are the declared resources, in order.
	Resources []*Resource
}

// Resource is a declared resource of a compiled policy. It is immutable.
type Resource struct {
	// Name in expressions.
	Name string
	Kind kinds.GroupVersionKind
	// Namespace of the objects. Empty means all.
	Namespace string
	// Labels is nil for all objects.
	Labels labels.Selector
	// ByName means that the policy reads one object by its name. Otherwise, it reads all that match.
	ByName bool
	// Constant is the name if nameExpression is a text, such as "'limits'". Otherwise, it is empty.
	Constant string
	// OnNode means that only objects whose spec.nodeName is the node's name match.
	OnNode bool
}

// Subject is a bind.
type Subject struct {
	Pod     *corev1.Pod
	Node    *corev1.Node
	Binding *corev1.Binding
	User    authenticationv1.UserInfo
	DryRun  bool
	// Now is the time of the evaluation. Since is the start of the wait, or Now.
	Now, Since time.Time
}

// MaxObject is the maximum size of an object that expressions use, in bytes as stored by the API server. A larger one is a LimitError.
const MaxObject = 32 << 10

// LimitError is an error of Objects if there are too many or too large objects, or if the kind does not exist: time does not help.
type LimitError struct {
	// Message describes the limit, and how to stay below it.
	Message string
}

// Error implements error.
func (e *LimitError) Error() string { return e.Message }

// PendingError is the reason why a policy cannot be evaluated yet.
type PendingError struct {
	// Err describes what is missing.
	Err error
}

// Error implements error.
func (e *PendingError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *PendingError) Unwrap() error { return e.Err }

// Objects reads objects. Every error is an error of the policy. One that is not a LimitError counts as a PendingError, because the next read can
// succeed. Evaluate calls each method at most once per policy and argument, and only for what is needed.
type Objects interface {
	// Namespace returns the pod's Namespace, or nil.
	Namespace(ctx context.Context) (*corev1.Namespace, error)
	// Claims returns the pod's claims by the name of the volume. A missing claim has the value nil.
	Claims(ctx context.Context) (map[string]*corev1.PersistentVolumeClaim, error)
	// Resource returns the objects of the resource, in a stable order. name and namespace are set if
	// ByName is; then there is at most one.
	Resource(ctx context.Context, r *Resource, namespace, name string) ([]client.Object, error)
}

// Verdict is the result of a policy for a bind.
type Verdict string

// The verdicts. They are values of a metric's label.
const (
	// NotMatched: the policy does not apply.
	NotMatched Verdict = "not-matched"
	// Allowed: all validations and waits are true, or timed out with Allow.
	Allowed Verdict = "allowed"
	// Rejected: a validation is false.
	Rejected Verdict = "rejected"
	// Waiting: a wait is false.
	Waiting Verdict = "waiting"
	// TimedOut: a wait was false for its timeout, and rejects the bind.
	TimedOut Verdict = "timed-out"
	// Failed: the policy cannot be evaluated, time does not help, and the failure policy is Fail. If time can help, the
	// verdict is Waiting.
	Failed Verdict = "failed"
	// Ignored: the policy cannot be evaluated, and the failure policy is Ignore.
	Ignored Verdict = "ignored"
)

// Rejects returns whether the verdict rejects the bind.
func (v Verdict) Rejects() bool { return v == Rejected || v == TimedOut || v == Failed }

// Result is the result of one policy for a bind.
type Result struct {
	Policy  string
	Verdict Verdict
	// Audit means that the verdict is only reported.
	Audit bool
	// Rule is the path of the expression that led to the verdict, such as spec.validations[0], or
	// spec.waitFor[driver]. It is empty for NotMatched and Allowed.
	Rule string
	// Message explains the verdict: one line, at most MaxMessage bytes.
	Message string
	// Until is the time at which the verdict changes if no object changes. Zero means never.
	Until time.Time
	// Waived are the names of waits that timed out with Allow.
	Waived []string
	// Annotations and Labels of the pod by complete key. They are set for Allowed only.
	Annotations, Labels map[string]string
	// Err is the reason why the policy cannot be evaluated.
	Err error
	// Cost of all expressions, in units of CEL.
	Cost uint64
}

// MaxMessage is the maximum length of a message in bytes.
const MaxMessage = 1024

// SizeOf returns the size of an object as the API server stores it, in bytes.
func SizeOf(o client.Object) int {
	if typed, ok := o.(interface{ Size() int }); ok {
		return typed.Size()
	}
	content, err := json.Marshal(o)
	if err != nil {
		return math.MaxInt
	}
	return len(content)
}
