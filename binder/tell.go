// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	"github.com/prebind/prebind/binder/framework"
)

// Reasons of the events on pods. They are stable.
const (
	// ReasonWaiting: the bind waits, for what the event says.
	ReasonWaiting = "WaitingForPreBind"
	// ReasonRefused: the bind was refused, for the reason that the event says.
	ReasonRefused = "BindRefused"
	// ReasonAudited: the bind went ahead, in ModeAudit, that would have been refused or
	// would have waited, for the reason that the event says.
	ReasonAudited = "BindAudited"
	// ReasonRolledBack: what was prepared for the bind was undone, for it did not
	// come about.
	ReasonRolledBack = "PreBindRolledBack"

	// eventAction is what the events' regarding object was subjected to.
	eventAction = "Binding"
	// tellAfter is how long a call is held before an event says what it waits for. Without
	// that, users would see nothing until the hold ends.
	tellAfter = 5 * time.Second
	// tellAgain is how long no further event reports that a bind waits for the same object. Each
	// event is a write of the API server, and a crowd of waiting pods makes one for each of them.
	tellAgain = 2 * time.Minute
	// maxNote is what an event's note may hold.
	maxNote = 1024
)

// tell makes an event of a denial on the pod, so that no pod is refused silently.
// Events that say the same are counted up by the recorder.
func (e *Engine) tell(c *call, pod *corev1.Pod, d Decision) {
	if d.Audit != nil {
		e.tellAudit(pod, d)
		return
	}
	if d.Err == nil {
		return
	}
	kind, reason := corev1.EventTypeWarning, ReasonRefused
	if d.Err.Kind == framework.KindWait {
		if !e.tellsWait(c, d.Err) {
			return
		}
		kind, reason = corev1.EventTypeNormal, ReasonWaiting
	}
	e.tellError(pod, d.Err, kind, reason, d.Err.Error())
}

// tellOfHold makes an event of what the call waits for, once it has been held for a while.
// The caller stops the timer when the hold ends.
func (e *Engine) tellOfHold(c *call, r *round) clock.Timer {
	pod, a := c.pod, c.joined
	return e.o.Clock.AfterFunc(tellAfter, func() {
		if a != nil {
			err := a.waiting(r, e.o.Clock.Now())
			if e.tellsWait(c, err) {
				e.tellError(pod, err, corev1.EventTypeNormal, ReasonWaiting, err.Error())
			}
		}
	})
}

// tellsWait returns whether an event has to report the wait, and records that one does. None
// does while this replica, or another one that had an earlier call, has just reported it.
func (e *Engine) tellsWait(c *call, err *framework.Error) bool {
	tells, now := true, e.o.Clock.Now()
	e.remember(c, func(w *waited) {
		if w.told.IsZero() {
			tells = c.missed == 0 || now.Sub(c.waitBegan) >= tellAgain
		} else {
			tells = w.toldOf != err.Object || now.Sub(w.told) >= tellAgain
		}
		if tells {
			w.told, w.toldOf = now, err.Object
		}
	})
	return tells
}

// tellAudit makes an event of what would have kept the pod from being bound.
func (e *Engine) tellAudit(pod *corev1.Pod, d Decision) {
	if len(d.Warnings) > 0 {
		e.tellError(pod, d.Audit.Err, corev1.EventTypeNormal, ReasonAudited, strings.Join(d.Warnings, "; "))
	}
}

// tellError makes an event; err may be nil.
func (e *Engine) tellError(pod *corev1.Pod, err *framework.Error, kind, reason, note string) {
	// Events of one reason about one object are counted as one: another object,
	// such as another claim, makes another event.
	var about runtime.Object
	if err != nil && err.Object.Name != "" {
		about = &corev1.ObjectReference{Kind: err.Object.Kind, Namespace: err.Object.Namespace, Name: err.Object.Name}
	}
	e.o.Events.Eventf(pod, about, kind, reason, eventAction, "%s", clip(note, maxNote))
}

// tellUndone makes an event of what a plugin has undone, if anything.
func tellUndone(recorder events.EventRecorder, pod *corev1.Pod, node, plugin string, undone []string) {
	undone = slices.Compact(undone)
	if len(undone) == 0 {
		return
	}
	note := "the bind to " + node + " did not come about: " + plugin + " " + strings.Join(undone, ", ")
	recorder.Eventf(pod, nil, corev1.EventTypeNormal, ReasonRolledBack, eventAction, "%s", clip(note, maxNote))
}
