// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// BindTask asks a handler for a step before the bind of a pod. Prebind creates it for a task of a BindPolicy, and deletes it. The handler adds
// its name to the finalizers before it begins, reports the result in the status, and undoes its work when the BindTask is deleted. Then it removes
// the finalizer.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=bt
// +kubebuilder:subresource:status
// +kubebuilder:selectablefield:JSONPath=`.spec.handler`
// +kubebuilder:selectablefield:JSONPath=`.spec.nodeName`
// +kubebuilder:selectablefield:JSONPath=`.spec.pod.uid`
// +kubebuilder:printcolumn:name="Handler",type=string,JSONPath=`.spec.handler`
// +kubebuilder:printcolumn:name="Namespace",type=string,JSONPath=`.spec.pod.namespace`
// +kubebuilder:printcolumn:name="Pod",type=string,JSONPath=`.spec.pod.name`
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.spec.nodeName`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Failed",type=string,JSONPath=`.status.conditions[?(@.type=="Failed")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type BindTask struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   BindTaskSpec   `json:"spec"`
	Status BindTaskStatus `json:"status,omitzero"`
}

// BindTaskList is a list of BindTasks.
//
// +kubebuilder:object:root=true
type BindTaskList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []BindTask `json:"items"`
}

// BindTaskSpec describes the step.
//
// +kubebuilder:validation:XValidation:rule="self.policy == oldSelf.policy && self.task == oldSelf.task && self.handler == oldSelf.handler && self.pod == oldSelf.pod && self.nodeName == oldSelf.nodeName && self.retain == oldSelf.retain && has(self.parameters) == has(oldSelf.parameters) && (!has(self.parameters) || self.parameters == oldSelf.parameters)",message="only attempts can change"
type BindTaskSpec struct {
	// Policy is the name of the BindPolicy.
	//
	// +kubebuilder:validation:MaxLength=63
	Policy string `json:"policy"`
	// Task is the name of the task in the BindPolicy.
	//
	// +kubebuilder:validation:MaxLength=40
	Task string `json:"task"`
	// Handler is the name of the program that does the step.
	//
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?$`
	Handler string `json:"handler"`
	// Pod is the pod of the bind.
	Pod PodReference `json:"pod"`
	// NodeName is the node of the bind.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	NodeName string `json:"nodeName"`
	// Parameters of the step.
	//
	// +kubebuilder:validation:MaxProperties=32
	Parameters map[string]ParameterValue `json:"parameters,omitempty"`
	// Retain is how long the BindTask of a bound pod stays: WhilePodRuns until the pod has ended, UntilBound until it is bound.
	Retain Retain `json:"retain"`
	// Attempts names the attempts to bind the pod that rely on the BindTask. It is empty when the pod is bound.
	// Handlers ignore it.
	//
	// +listType=set
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=128
	Attempts []string `json:"attempts,omitempty"`
}

// ParameterValue is the value of a parameter.
//
// +kubebuilder:validation:MaxLength=4096
type ParameterValue string

// PodReference identifies a pod.
type PodReference struct {
	// Namespace of the pod.
	//
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
	// Name of the pod.
	//
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// UID of the pod.
	//
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=128
	UID types.UID `json:"uid"`
}

// Conditions of a BindTask.
const (
	// TaskReady is True when the step is done. False and Unknown mean that the bind waits; the message says for what.
	TaskReady = "Ready"
	// TaskFailed is True when the step cannot be done. Prebind rejects the bind with the message, and deletes the BindTask. It takes precedence over TaskReady.
	TaskFailed = "Failed"
)

// BindTaskStatus is the result of the step. The handler writes it.
type BindTaskStatus struct {
	// Conditions contains Ready, which is True when the step is done; False and Unknown mean that the bind waits. Failed is True when the step
	// cannot be done: Prebind rejects the bind with the message, also if Ready is True.
	//
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []TaskCondition `json:"conditions,omitempty"`
	// Annotations that the pod gets as <policy>.policy.prebind.dev/<key>, if Ready is True. Keys have at most 63 letters, digits, '-', '_' and '.', and begin
	// and end with a letter or digit; another key rejects the bind.
	//
	// +kubebuilder:validation:MaxProperties=16
	Annotations map[string]AnnotationValue `json:"annotations,omitempty"`
}

// AnnotationValue is the value of an annotation.
//
// +kubebuilder:validation:MaxLength=1024
type AnnotationValue string

// TaskCondition is a condition of a BindTask. Only type and status are required, so that a handler can be a script.
type TaskCondition struct {
	// Type of the condition, such as Ready or Failed.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=316
	Type string `json:"type"`
	// Status is True, False or Unknown.
	//
	// +kubebuilder:validation:Enum=True;False;Unknown
	Status metav1.ConditionStatus `json:"status"`
	// Reason is a word for programs.
	//
	// +kubebuilder:validation:MaxLength=128
	Reason string `json:"reason,omitempty"`
	// Message for the user of the pod.
	//
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
	// LastTransitionTime is when the status last changed.
	LastTransitionTime metav1.Time `json:"lastTransitionTime,omitzero"`
}

// Condition returns the condition of the type, or nil.
func (t *BindTask) Condition(conditionType string) *TaskCondition {
	for i := range t.Status.Conditions {
		if t.Status.Conditions[i].Type == conditionType {
			return &t.Status.Conditions[i]
		}
	}
	return nil
}

// IsTrue returns whether the condition of the type is True.
func (t *BindTask) IsTrue(conditionType string) bool {
	c := t.Condition(conditionType)
	return c != nil && c.Status == metav1.ConditionTrue
}
