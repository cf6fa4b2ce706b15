// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// BindPolicy describes what happens when a scheduler binds a pod to a node: annotations and labels that
// the pod gets together with its node, conditions that reject the bind, and conditions that it waits
// for.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=bp
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.spec.mode`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$') && size(self.metadata.name) <= 63",message="the name must be a DNS label, because it is part of annotation keys"
type BindPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   BindPolicySpec   `json:"spec"`
	Status BindPolicyStatus `json:"status,omitzero"`
}

// BindPolicyList is a list of BindPolicies.
//
// +kubebuilder:object:root=true
type BindPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []BindPolicy `json:"items"`
}

// BindPolicySpec is the desired behavior of a BindPolicy. CEL expressions have these variables: object
// (the Binding), pod, node, namespaceObject, request, claims, resources, and variables.
//
// +kubebuilder:validation:XValidation:rule="has(self.validations) || has(self.waitFor) || has(self.tasks) || has(self.mutations)",message="at least one of validations, waitFor, tasks and mutations is required"
type BindPolicySpec struct {
	// MatchConstraints selects the binds to which the policy applies. All given selectors must match.
	// An empty value selects the binds of all pods except DaemonSet pods.
	MatchConstraints MatchConstraints `json:"matchConstraints,omitzero"`

	// MatchConditions are CEL expressions that must all be true for the policy to apply. They are
	// evaluated after matchConstraints, in order.
	//
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	MatchConditions []MatchCondition `json:"matchConditions,omitempty"`

	// Resources are other objects that expressions use. Prebind needs permission to get, list and watch
	// their kinds.
	//
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	Resources []Resource `json:"resources,omitempty"`

	// Variables are expressions that other expressions use as variables.<name>. Each is evaluated at
	// most once per evaluation of the policy. It may use the variables before it.
	//
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	Variables []Variable `json:"variables,omitempty"`

	// Validations reject the bind with 403 if an expression is false.
	//
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:MinItems=1
	Validations []Validation `json:"validations,omitempty"`

	// WaitFor delays the bind until all expressions are true. An expression is evaluated again when an
	// object that it uses changes.
	//
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:MinItems=1
	WaitFor []Wait `json:"waitFor,omitempty"`

	// Tasks are steps that other programs do before the bind. Prebind creates a BindTask for each when all waits of this policy
	// are over.
	//
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:MinItems=1
	Tasks []Task `json:"tasks,omitempty"`

	// Mutations are annotations and labels that the pod gets with the bind.
	Mutations *Mutations `json:"mutations,omitempty"`

	// FailurePolicy applies if the policy cannot be evaluated: Fail rejects the bind, or delays it if time can help. Ignore
	// skips the policy for this bind.
	//
	// +kubebuilder:default=Fail
	FailurePolicy FailurePolicy `json:"failurePolicy,omitempty"`

	// Mode Enforce applies the policy. Audit only reports what the policy would do, but not its annotations and labels, in
	// events, metrics, warnings and 'kubectl prebind explain'.
	//
	// +kubebuilder:default=Enforce
	Mode Mode `json:"mode,omitempty"`
}

// MatchConstraints selects binds. All given selectors must match.
type MatchConstraints struct {
	// NamespaceSelector selects the namespaces of the pods by their labels.
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`
	// PodSelector selects pods by their labels.
	PodSelector *metav1.LabelSelector `json:"podSelector,omitempty"`
	// NodeSelector selects the nodes of the binds by their labels.
	NodeSelector *metav1.LabelSelector `json:"nodeSelector,omitempty"`
	// SchedulerNames selects pods by spec.schedulerName. Empty selects all.
	//
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=253
	SchedulerNames []string `json:"schedulerNames,omitempty"`
	// IncludeDaemonSetPods includes pods of DaemonSets. By default, the policy does not
	// apply to them, so that the agents that a policy waits for can start.
	IncludeDaemonSetPods bool `json:"includeDaemonSetPods,omitempty"`
}

// MatchCondition is a condition for the policy to apply.
type MatchCondition struct {
	// Name identifies the condition in messages. It can have a DNS subdomain and a slash before it, such as
	// example.com/gpu.
	//
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`
	Name string `json:"name"`
	// Expression returns a bool.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=8192
	Expression string `json:"expression"`
}

// Resource declares objects that expressions use as resources.<name>. With nameExpression, the value is
// the object, or null if it does not exist. Otherwise, the value is the list of the objects that
// match all selectors.
//
// +kubebuilder:validation:XValidation:rule="has(self.nameExpression) || has(self.labelSelector) || (has(self.onNode) && self.onNode)",message="nameExpression, labelSelector or onNode is required"
// +kubebuilder:validation:XValidation:rule="!has(self.nameExpression) || !has(self.labelSelector) && !(has(self.onNode) && self.onNode)",message="nameExpression cannot be combined with labelSelector or onNode"
// +kubebuilder:validation:XValidation:rule="!has(self.namespaceExpression) || !has(self.__namespace__)",message="namespaceExpression cannot be combined with namespace"
type Resource struct {
	// Name of the resource in expressions: resources.<name>. It is a CEL identifier.
	//
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-zA-Z_][a-zA-Z0-9_]*$`
	// +kubebuilder:validation:XValidation:rule="!(self in ['true', 'false', 'null', 'in'])",message="must not be a keyword of CEL"
	Name string `json:"name"`
	// APIVersion of the objects, such as storage.k8s.io/v1.
	//
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[a-z]([-a-z0-9]{0,61}[a-z0-9])?$`
	APIVersion string `json:"apiVersion"`
	// Kind of the objects, such as CSINode.
	//
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Za-z]([-A-Za-z0-9]*[A-Za-z0-9])?$`
	Kind string `json:"kind"`
	// Namespace of the objects. If neither it nor namespaceExpression is set, labelSelector and onNode select objects in
	// all namespaces, and nameExpression selects a cluster-scoped object.
	//
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Namespace string `json:"namespace,omitempty"`
	// NameExpression returns the name of the object, such as node.metadata.name. An empty string means
	// that there is no object. It cannot use resources.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=8192
	NameExpression string `json:"nameExpression,omitempty"`
	// NamespaceExpression returns the namespace of the objects, such as pod.metadata.namespace. An empty string means that
	// there is no object. It cannot use resources.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=8192
	NamespaceExpression string `json:"namespaceExpression,omitempty"`
	// LabelSelector selects objects by their labels.
	LabelSelector *metav1.LabelSelector `json:"labelSelector,omitempty"`
	// OnNode selects objects on the node of the bind: those whose spec.nodeName is the name of the node.
	OnNode bool `json:"onNode,omitempty"`
}

// Variable is a named expression.
type Variable struct {
	// Name of the variable in expressions: variables.<name>. It is a CEL identifier.
	//
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-zA-Z_][a-zA-Z0-9_]*$`
	// +kubebuilder:validation:XValidation:rule="!(self in ['true', 'false', 'null', 'in'])",message="must not be a keyword of CEL"
	Name string `json:"name"`
	// Expression returns the value, of any type.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=8192
	Expression string `json:"expression"`
}

// Validation is a condition of the bind.
type Validation struct {
	// Expression returns a bool. False rejects the bind.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=8192
	Expression string `json:"expression"`
	// Message is the reason of the rejection, without line breaks. The default names the expression.
	//
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^[^\r\n]*$`
	Message string `json:"message,omitempty"`
	// MessageExpression returns the message as a string. If it fails, or returns an empty string or a
	// string with line breaks, message is used.
	//
	// +kubebuilder:validation:MaxLength=8192
	MessageExpression string `json:"messageExpression,omitempty"`
}

// Wait is a condition that the bind waits for.
type Wait struct {
	// Name identifies the wait in messages and events.
	//
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`
	Name string `json:"name"`
	// Expression returns a bool. While it is false, the bind waits.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=8192
	Expression string `json:"expression"`
	// Message describes what the bind waits for, without line breaks. The default names the wait.
	//
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^[^\r\n]*$`
	Message string `json:"message,omitempty"`
	// MessageExpression returns the message as a string. If it fails, or returns an empty string or a
	// string with line breaks, message is used.
	//
	// +kubebuilder:validation:MaxLength=8192
	MessageExpression string `json:"messageExpression,omitempty"`
	// Timeout limits the wait, such as 90s or 2m. It counts from the first call for the bind. --prebind-timeout
	// applies as well.
	//
	// +kubebuilder:default="2m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Format=duration
	// +kubebuilder:validation:Pattern=`^([0-9]{1,5}(h|m|s|ms)){1,4}$`
	// +kubebuilder:validation:XValidation:rule="self >= duration('1s') && self <= duration('24h')",message="must be between 1s and 24h"
	Timeout metav1.Duration `json:"timeout,omitzero"`
	// OnTimeout is the result when the timeout is over: Refuse rejects the bind, Allow ends the wait.
	//
	// +kubebuilder:default=Refuse
	OnTimeout OnTimeout `json:"onTimeout,omitempty"`
}

// Task is a step that another program does before the bind.
type Task struct {
	// Name identifies the task in messages, and begins the name of its BindTasks. It is a DNS label.
	//
	// +kubebuilder:validation:MaxLength=40
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`
	// Handler is the name of the program, such as example.com/prefetch: a DNS subdomain, a slash, and a name in lower case of at most 63
	// characters.
	//
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?$`
	Handler string `json:"handler"`
	// Parameters for the handler. The BindTask keeps the values with which it was created.
	//
	// +listType=map
	// +listMapKey=key
	// +kubebuilder:validation:MaxItems=32
	Parameters []Parameter `json:"parameters,omitempty"`
	// Timeout limits the wait, such as 90s or 2m. It counts from the first call for the bind, so it includes the time of waitFor.
	// --prebind-timeout applies as well.
	//
	// +kubebuilder:default="2m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Format=duration
	// +kubebuilder:validation:Pattern=`^([0-9]{1,5}(h|m|s|ms)){1,4}$`
	// +kubebuilder:validation:XValidation:rule="self >= duration('1s') && self <= duration('24h')",message="must be between 1s and 24h"
	Timeout metav1.Duration `json:"timeout,omitzero"`
	// OnTimeout is the result when the timeout is over: Refuse rejects the bind, Allow ends the wait.
	//
	// +kubebuilder:default=Refuse
	OnTimeout OnTimeout `json:"onTimeout,omitempty"`
	// Retain is how long the BindTask of a bound pod stays: WhilePodRuns deletes it when the pod has ended, UntilBound when the pod
	// is bound. The BindTask of a bind that fails is deleted in any case.
	//
	// +kubebuilder:default=WhilePodRuns
	Retain Retain `json:"retain,omitempty"`
}

// Parameter is a parameter of a task.
type Parameter struct {
	// Key of the parameter, such as image.
	//
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`
	Key string `json:"key"`
	// ValueExpression returns the value as a string, or null to set nothing. All keys and values together have at most 4 KiB.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=8192
	ValueExpression string `json:"valueExpression"`
}

// Mutations are annotations and labels that the pod gets with the bind.
//
// +kubebuilder:validation:XValidation:rule="has(self.annotations) || has(self.labels)",message="annotations or labels are required"
type Mutations struct {
	// Annotations of the pod. They replace existing values.
	//
	// +listType=map
	// +listMapKey=key
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:MinItems=1
	Annotations []Mutation `json:"annotations,omitempty"`
	// Labels of the pod. They replace existing values. They require Kubernetes 1.35 or later.
	//
	// +listType=map
	// +listMapKey=key
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:MinItems=1
	Labels []Mutation `json:"labels,omitempty"`
}

// Mutation is one annotation or label.
type Mutation struct {
	// Key of the annotation or label. A key without a slash becomes <policy>.policy.prebind.dev/<key>. The
	// operator of Prebind must allow any other prefix (--policy-key-prefixes).
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)$`
	// +kubebuilder:validation:XValidation:rule="!self.matches('(^|[.])(kubernetes[.]io|k8s[.]io|prebind[.]dev)/')",message="keys of kubernetes.io, k8s.io and prebind.dev are not allowed; omit the prefix for a key of the policy"
	Key string `json:"key"`
	// ValueExpression returns the value as a string, or null to set nothing.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=8192
	ValueExpression string `json:"valueExpression"`
}

// FailurePolicy is the reaction to a runtime error.
//
// +kubebuilder:validation:Enum=Fail;Ignore
type FailurePolicy string

// The failure policies.
const (
	FailurePolicyFail   FailurePolicy = "Fail"
	FailurePolicyIgnore FailurePolicy = "Ignore"
)

// Mode is whether a policy is applied.
//
// +kubebuilder:validation:Enum=Enforce;Audit
type Mode string

// The modes.
const (
	ModeEnforce Mode = "Enforce"
	ModeAudit   Mode = "Audit"
)

// OnTimeout is the result of a wait whose timeout is over.
//
// +kubebuilder:validation:Enum=Refuse;Allow
type OnTimeout string

// The results of a timeout.
const (
	OnTimeoutRefuse OnTimeout = "Refuse"
	OnTimeoutAllow  OnTimeout = "Allow"
)

// Retain is how long the BindTask of a bound pod stays.
//
// +kubebuilder:validation:Enum=WhilePodRuns;UntilBound
type Retain string

// The lifetimes of BindTasks.
const (
	RetainWhilePodRuns Retain = "WhilePodRuns"
	RetainUntilBound   Retain = "UntilBound"
)

// ConditionReady is the type of the condition that shows whether the latest generation is in force. If it is
// False, the policy follows its failurePolicy.
const ConditionReady = "Ready"

// Reasons of ConditionReady.
const (
	// ReasonInForce: the latest generation is in force.
	ReasonInForce = "InForce"
	// ReasonCompileError: an expression does not compile, or has the wrong type.
	ReasonCompileError = "CompileError"
	// ReasonKeyNotAllowed: the operator does not allow the prefix of a key.
	ReasonKeyNotAllowed = "KeyNotAllowed"
	// ReasonUnknownKind: the API server does not serve the kind of a resource.
	ReasonUnknownKind = "UnknownKind"
	// ReasonForbidden: Prebind lacks permission to watch the kind of a resource.
	ReasonForbidden = "Forbidden"
	// ReasonWatchFailed: the watch of a resource has not delivered all objects.
	ReasonWatchFailed = "WatchFailed"
)

// BindPolicyStatus is the state of a BindPolicy. The leading replica of Prebind writes it.
type BindPolicyStatus struct {
	// ObservedGeneration is the generation that the conditions describe.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Conditions contains Ready. It is True if this generation was in force when Prebind last wrote it: it
	// stays when Prebind is removed. Otherwise, the reason is
	// CompileError, KeyNotAllowed, UnknownKind, Forbidden or WatchFailed, and the message shows how to fix the
	// problem. Until then, the policy follows its failurePolicy.
	//
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// TypeChecking contains warnings about types.
	TypeChecking *TypeChecking `json:"typeChecking,omitempty"`
}

// TypeChecking contains the result of type checking.
type TypeChecking struct {
	// ExpressionWarnings are problems that do not prevent the policy from being in force.
	//
	// +listType=atomic
	ExpressionWarnings []ExpressionWarning `json:"expressionWarnings,omitempty"`
}

// ExpressionWarning is a warning about one expression.
type ExpressionWarning struct {
	// FieldRef is the path of the expression, such as spec.validations[0].expression.
	FieldRef string `json:"fieldRef"`
	// Warning is the text.
	Warning string `json:"warning"`
}
