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
	// reportAfter is how long a call is held before an event says what it waits for. Without
	// that, users would see nothing until the hold ends.
	reportAfter = 5 * time.Second
	// reportAgain is how long no further event reports that a bind waits for the same object. Each
	// event is a write of the API server, and a crowd of waiting pods makes one for each of them.
	reportAgain = 2 * time.Minute
)

// report makes an event of a denial on the pod, so that no pod is rejected silently.
// Events that say the same are counted up by the recorder.
func (c *call) report(pod *corev1.Pod, d Decision) {
	if d.Audit != nil {
		c.reportAudit(pod, d)
		return
	}
	if d.Err == nil {
		return
	}
	kind, reason := corev1.EventTypeWarning, runner.ReasonRefused
	if d.Err.Kind == framework.KindWait {
		if !c.reportsWait(d.Err) {
			return
		}
		kind, reason = corev1.EventTypeNormal, runner.ReasonWaiting
	}
	c.reportError(pod, d.Err, kind, reason, d.Err.Error())
}

// reportHold makes an event of what the call waits for, once it has been held for a while.
// The caller stops the timer when the hold ends.
func (c *call) reportHold(r *attempt.Round) clock.Timer {
	pod, a := c.pod, c.joined
	return c.clock.AfterFunc(reportAfter, func() {
		if a != nil {
			err := a.Waiting(r, c.clock.Now())
			if c.reportsWait(err) {
				c.reportError(pod, err, corev1.EventTypeNormal, runner.ReasonWaiting, err.Error())
			}
		}
	})
}

// reportsWait returns whether an event has to report the wait, and records that one does. None
// does while this replica, or another one that had an earlier call, has just reported it.
func (c *call) reportsWait(err *framework.Error) bool {
	reports, now := true, c.clock.Now()
	c.waits.change(c.key, c.began, func(w *waited) {
		if w.told.IsZero() {
			reports = c.missed == 0 || now.Sub(c.waitBegan) >= reportAgain
		} else {
			reports = w.toldOf != err.Object || now.Sub(w.told) >= reportAgain
		}
		if reports {
			w.told, w.toldOf = now, err.Object
		}
	})
	return reports
}

// reportAudit makes an event of what would have kept the pod from being bound.
func (c *call) reportAudit(pod *corev1.Pod, d Decision) {
	if len(d.Warnings) > 0 {
		c.reportError(pod, d.Audit.Err, corev1.EventTypeNormal, runner.ReasonAudited, strings.Join(d.Warnings, "; "))
	}
}

// reportError makes an event; err may be nil.
func (c *call) reportError(pod *corev1.Pod, err *framework.Error, kind, reason, note string) {
	// Events of one reason about one object are counted as one: another object,
	// such as another claim, makes another event.
	var about runtime.Object
	if err != nil && err.Object.Name != "" {
		about = &corev1.ObjectReference{Kind: err.Object.Kind, Namespace: err.Object.Namespace, Name: err.Object.Name}
	}
	c.runner.Report(pod, about, kind, reason, note)
}
