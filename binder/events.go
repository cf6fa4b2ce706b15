// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/work"
)

const (
	// reportAfter is how long a call is held before an event says what it waits for. Without
	// that, users would see nothing until the hold ends.
	reportAfter = 5 * time.Second
	// reportAgain is how long no further event reports that a bind waits for the same object. Each
	// event is a write of the API server, and a crowd of waiting pods makes one for each of them.
	reportAgain = 2 * time.Minute
)

// report records an event about a denial, or about the result of an audit, on the pod.
func (c *call) report(d Decision) {
	switch {
	case d.Audit != nil && len(d.Warnings) > 0:
		c.event(d.Audit.Err, corev1.EventTypeNormal, work.ReasonAudited, strings.Join(d.Warnings, "; "))
	case d.Audit != nil || d.Err == nil:
	case d.Err.Kind == framework.KindWait:
		c.reportWait(d.Err)
	default:
		c.event(d.Err, corev1.EventTypeWarning, work.ReasonRefused, d.Err.Error())
	}
}

// reportWait records an event about a wait, unless this replica has reported it a short time ago.
func (c *call) reportWait(err *framework.Error) {
	reports, now := false, c.o.Clock.Now()
	c.waits.change(c.key, c.first, func(w *waited) {
		reports = w.reported.IsZero() || w.object != err.Object || now.Sub(w.reported) >= reportAgain
		if reports {
			w.reported, w.object = now, err.Object
		}
	})
	if reports {
		c.event(err, corev1.EventTypeNormal, work.ReasonWaiting, err.Error())
	}
}

// event records an event; err may be nil.
func (c *call) event(err *framework.Error, kind, reason, note string) {
	// The recorder counts events with the same reason and the same related object as one.
	var about runtime.Object
	if err != nil && err.Object.Name != "" && c.node != nil { // Clients can invent any number of nodes.
		about = &corev1.ObjectReference{Kind: err.Object.Kind, Namespace: err.Object.Namespace, Name: err.Object.Name}
	}
	c.work.Report(c.pod, c.key.Node, about, kind, reason, note)
}
