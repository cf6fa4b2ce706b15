// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Whereabouts says where the pod of a bind is.
type Whereabouts string

const (
	// Pending means that the pod has no node and can still be bound.
	Pending Whereabouts = "pending"
	// BoundHere means that the pod is bound to the node of the bind, by whichever attempt.
	BoundHere Whereabouts = "bound here"
	// BoundElsewhere means that the pod is bound to another node.
	BoundElsewhere Whereabouts = "bound elsewhere"
	// Gone means that there is no such pod, or it is being deleted and has no node.
	Gone Whereabouts = "gone"
	// Replaced means that another pod has its name.
	Replaced Whereabouts = "replaced"
)

// WhereaboutsOf returns where the pod with the UID is, for a bind to the node. The pod
// is the one that has its name, or nil if there is none. A bound pod stays bound while
// it is being deleted and after it has finished.
func WhereaboutsOf(pod *corev1.Pod, uid types.UID, node string) Whereabouts {
	switch {
	case pod == nil:
		return Gone
	case pod.UID != uid:
		return Replaced
	case pod.Spec.NodeName == node && node != "":
		return BoundHere
	case pod.Spec.NodeName != "":
		return BoundElsewhere
	case pod.DeletionTimestamp != nil:
		return Gone
	default:
		return Pending
	}
}
