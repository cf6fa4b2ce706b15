// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package handler

import (
	"context"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Handler does the step of BindTasks.
type Handler struct {
	// Name of the handler in BindPolicies, such as example.com/prefetch. It is also the finalizer. Required.
	Name string
	// Do begins the step, or checks the step that an earlier call began. It must not wait: it returns Waiting, and is called again. It is
	// called again after an error, too, with a delay that grows to 10 seconds. The error is logged. Required.
	Do func(ctx context.Context, task *Task) (Result, error)
	// Undo undoes what Do did, if anything, when the task is deleted. Undo is called again after an error, as Do is. Nil means that there
	// is nothing to undo: the handler does not write a finalizer.
	Undo func(ctx context.Context, task *Task) error
	// Workers is the number of calls of Do and Undo at the same time, not negative. 0 means 8.
	Workers int
}

// Task is the part of a BindTask that a handler needs.
type Task struct {
	// Name of the BindTask. When Prebind repeats a bind, the new BindTask can have the same name. Its UID differs.
	Name string    `json:"-"`
	UID  types.UID `json:"-"`
	// Policy is the name of the BindPolicy.
	Policy string `json:"policy"`
	Pod    Pod    `json:"pod"`
	// NodeName is the name of the node of the bind.
	NodeName   string            `json:"nodeName"`
	Parameters map[string]string `json:"parameters"`
	// Annotations are those of the result Ready. They are empty until it is written.
	Annotations map[string]string `json:"-"`
}

// Pod identifies the pod of a task.
type Pod struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
}

// OwnerReference returns a reference to the BindTask. The garbage collector deletes objects with this reference when the BindTask is gone.
// Objects in any namespace can have it.
func (t *Task) OwnerReference() metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: resource.GroupVersion().String(), Kind: "BindTask", Name: t.Name, UID: t.UID}
}

// Result is the state of the step. Ready, Failed and Waiting return Results. The zero Result is not valid.
type Result struct {
	condition   metav1.Condition
	annotations map[string]string
	again       time.Duration
}

// Ready means that the step is done. The pod gets the annotations as <policy>.policy.prebind.dev/<key>: at most 16, of at most 1 KiB each.
func Ready(annotations map[string]string) Result {
	return Result{condition: metav1.Condition{Type: typeReady, Status: metav1.ConditionTrue}, annotations: annotations}
}

// Failed means that the step cannot be done. Prebind rejects the bind with the message, and deletes the BindTask. The reason is a word for
// programs.
func Failed(reason, message string) Result {
	return Result{condition: metav1.Condition{Type: typeFailed, Status: metav1.ConditionTrue, Reason: reason, Message: limit(message)}}
}

// Waiting means that Do must be called again, after the time. The user of the pod reads that the bind waits for the handler, with the
// message. A new message is a write, so it should not contain a time or a percentage.
func Waiting(message string, again time.Duration) Result {
	return Result{
		condition: metav1.Condition{Type: typeReady, Status: metav1.ConditionFalse, Message: limit(message)},
		again:     max(again, 100*time.Millisecond),
	}
}

// limit returns the beginning of the message, in the length and encoding that the API accepts.
func limit(message string) string {
	const most = 1024
	message = strings.ToValidUTF8(message, "�")
	if runes := []rune(message); len(runes) > most {
		return string(runes[:most-1]) + "…"
	}
	return message
}
