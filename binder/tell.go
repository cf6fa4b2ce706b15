// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"

	"github.com/prebind/prebind/binder/attempt"
	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/runner"
)

const (
	// tellAfter is how long a call is held before an event says what it waits for. Without
	// that, users would see nothing until the hold ends.
	tellAfter = 5 * time.Second
	// tellAgain is how long no further event reports that a bind waits for the same object. Each
	// event is a write of the API server, and a crowd of waiting pods makes one for each of them.
	tellAgain = 2 * time.Minute
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
	kind, reason := corev1.EventTypeWarning, runner.ReasonRefused
	if d.Err.Kind == framework.KindWait {
		if !e.tellsWait(c, d.Err) {
			return
		}
		kind, reason = corev1.EventTypeNormal, runner.ReasonWaiting
	}
	e.tellError(pod, d.Err, kind, reason, d.Err.Error())
}

// tellOfHold makes an event of what the call waits for, once it has been held for a while.
// The caller stops the timer when the hold ends.
func (e *Engine) tellOfHold(c *call, r *attempt.Round) clock.Timer {
	pod, a := c.pod, c.joined
	return e.o.Clock.AfterFunc(tellAfter, func() {
		if a != nil {
			err := a.Waiting(r, e.o.Clock.Now())
			if e.tellsWait(c, err) {
				e.tellError(pod, err, corev1.EventTypeNormal, runner.ReasonWaiting, err.Error())
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
		e.tellError(pod, d.Audit.Err, corev1.EventTypeNormal, runner.ReasonAudited, strings.Join(d.Warnings, "; "))
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
	e.runner.Report(pod, about, kind, reason, note)
}
