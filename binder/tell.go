// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"

	"github.com/prebind/prebind/binder/api"
)

// Reasons of the events on pods. They are stable.
const (
	// ReasonWaiting: the bind waits, for what the event says.
	ReasonWaiting = "WaitingForPreBind"
	// ReasonRefused: the bind was refused, for the reason that the event says.
	ReasonRefused = "BindRefused"
	// ReasonRolledBack: what was prepared for the bind was undone, for it did not
	// come about.
	ReasonRolledBack = "PreBindRolledBack"

	// eventAction is what the events' regarding object was subjected to.
	eventAction = "Binding"
	// maxNote is what an event's note may hold.
	maxNote = 1024
)

// tell makes an event of a denial on the pod, so that no pod is refused silently.
// Events that say the same are counted up by the recorder.
func (e *Engine) tell(pod *corev1.Pod, d Decision) {
	if d.Err == nil {
		return
	}
	kind, reason := corev1.EventTypeWarning, ReasonRefused
	if d.Err.Kind == api.KindWait {
		kind, reason = corev1.EventTypeNormal, ReasonWaiting
	}
	// Events of one reason about one object are counted as one: another object,
	// such as another claim, makes another event.
	var about runtime.Object
	if o := d.Err.Object; o.Name != "" {
		about = &corev1.ObjectReference{Kind: o.Kind, Namespace: o.Namespace, Name: o.Name}
	}
	note := d.Err.Error()
	if len(note) > maxNote {
		note = strings.ToValidUTF8(note[:maxNote], "")
	}
	e.o.Events.Eventf(pod, about, kind, reason, eventAction, "%s", note)
}

// tellUndone makes an event of what a plugin has undone, if anything.
func tellUndone(recorder events.EventRecorder, pod *corev1.Pod, node, plugin string, undone []string) {
	undone = slices.Compact(undone)
	if len(undone) == 0 {
		return
	}
	recorder.Eventf(pod, nil, corev1.EventTypeNormal, ReasonRolledBack, eventAction,
		"the bind to %s did not come about: %s %s", node, plugin, strings.Join(undone, ", "))
}
