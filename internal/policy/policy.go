// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package policy compiles and evaluates BindPolicies. It does no I/O: the caller reads the objects that
// expressions use (Objects), and acts on the result.
//
// A policy is compiled once per generation (Compile). The compiled form is immutable and safe for
// concurrent use.
package policy

import (
	"time"

	"github.com/google/cel-go/common/types/ref"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	kinds "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/prebind/prebind/policy/v1alpha1"
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
	// BindTimeout is --prebind-timeout. A wait with a longer timeout gets a warning. Zero means no such warnings.
	BindTimeout time.Duration
	// Schemas is used for warnings about custom resources. Nil means no such warnings.
	Schemas Schemas
}

// Resource are objects that a policy reads. It is immutable.
type Resource struct {
	// Name in expressions, and Path in the policy.
	Name, Path string
	Kind       kinds.GroupVersionKind
	// Namespace of the objects. Empty means all.
	Namespace string
	// Labels is nil for all objects.
	Labels labels.Selector
	// InNamespace means that the policy names a namespace, also by an expression, so the kind must be namespaced.
	InNamespace bool
	// ByName means that the policy reads one object by its name. Otherwise, it reads all that match.
	ByName bool
	// Constant is the name if nameExpression uses no variables, such as "'limits'". Otherwise, it is empty.
	Constant string
	// ByNamespace means that the policy reads the objects of one namespace, which namespaceExpression returns. It is not set with ByName.
	ByNamespace bool
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

	// pod and binding are the values of copies of Pod and Binding, once a policy has used them. All policies share them, because copies need more
	// time than most policies. So policies must be evaluated one after the other.
	pod, binding ref.Val
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

// Verdicts are all verdicts.
var Verdicts = []Verdict{NotMatched, Allowed, Rejected, Waiting, TimedOut, Failed, Ignored}

// Rejects returns whether the verdict rejects the bind.
func (v Verdict) Rejects() bool { return v == Rejected || v == TimedOut || v == Failed }

// Result is the result of one policy for a bind.
type Result struct {
	// Policy and UID identify the policy.
	Policy  string
	UID     types.UID
	Verdict Verdict
	// Audit means that the verdict is only reported.
	Audit bool
	// Rule is the path of the expression that led to the verdict, such as spec.validations[0], or
	// spec.waitFor[driver]. It is empty for Allowed.
	Rule string
	// Message explains the verdict: one line, at most MaxMessage bytes.
	Message string
	// Until is the time at which the verdict changes if no object changes. Zero means never.
	Until time.Time
	// Waived are the names of waits that timed out with Allow.
	Waived []string
	// Needs is the number of tasks of the policy, unless it is ignored. If Err is set, the policy need not match. Tasks are those of the bind. They are set
	// for Allowed only.
	Needs int `json:"-"`
	Tasks []Task
	// Annotations and Labels of the pod by complete key. They are set for Allowed only.
	Annotations, Labels map[string]string
	// Err is the reason why the policy cannot be evaluated.
	Err error `json:"-"`
	// Cost of all expressions, in units of CEL.
	Cost uint64
}

// Task is a task that a policy needs for a bind.
type Task struct {
	// Policy is the name of the policy. Name and Handler are those of the task in it.
	Policy, Name, Handler string
	// Parameters are the values for this bind.
	Parameters map[string]string
	// Timeout counts from the first call. Allow means that the bind goes on after it.
	Timeout time.Duration
	Allow   bool
	Retain  v1alpha1.Retain
}

// MaxParameters is the maximum size of the parameters of a task, keys and values, in bytes.
const MaxParameters = 4 << 10

// MaxMessage is the maximum length of a message in bytes.
const MaxMessage = 1024
