// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package work

import (
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
	// eventAction is the action of every event.
	eventAction = "Binding"
	// maxNote is the longest note that the API server accepts, in bytes.
	maxNote = 1024
)

// Report records an event on the pod; related may be nil.
func (s *Set) Report(pod *corev1.Pod, related runtime.Object, eventType, reason, note string) {
	s.o.Events.Eventf(pod, related, eventType, reason, eventAction, "%s", text.Clip(note, maxNote))
}
