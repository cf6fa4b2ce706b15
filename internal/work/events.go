// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package work

import (
	"regexp"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/prebind/prebind/internal/text"
)

// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Reasons of the events on pods. They are stable.
const (
	// ReasonWaiting: the bind waits for what the event says.
	ReasonWaiting = "WaitingForPreBind"
	// ReasonRefused: the bind was rejected for the reason that the event says.
	ReasonRefused = "BindRefused"
	// ReasonAudited: ModeAudit allowed the bind, which would have been rejected or would have
	// waited for the reason that the event says.
	ReasonAudited = "BindAudited"
	// ReasonRolledBack: the pod was not bound, and the writes for it were rolled back.
	ReasonRolledBack = "PreBindRolledBack"
)

const (
	// eventAction is the action of every event, except of rollbacks.
	eventAction = "Binding"
	// maxNote is the longest note that the API server accepts, in bytes.
	maxNote = 1024
)

// nodeInNote matches the node of a bind in a note.
var nodeInNote = regexp.MustCompile(`(?:^|: )Node ([^ ]+): `)

// NodeOf returns the node that a note of Report names, or "".
func NodeOf(note string) string {
	if found := nodeInNote.FindStringSubmatch(note); found != nil {
		return found[1]
	}
	return ""
}

// Report records an event about a bind to the node on the pod; related may be nil. The note begins with the node, unless it names
// the node as the object.
func (s *Set) Report(pod *corev1.Pod, node string, related runtime.Object, eventType, reason, note string) {
	if NodeOf(note) != node {
		note = "Node " + node + ": " + note
	}
	s.o.Events.Eventf(pod, related, eventType, reason, eventAction, "%s", text.Clip(note, maxNote))
}
