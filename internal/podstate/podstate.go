// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package podstate distinguishes the states of the pod of a bind.
package podstate

import (
	"context"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// State is the state of the pod of a bind.
type State string

const (
	// Pending means that the pod has no node and can still be bound.
	Pending State = "pending"
	// BoundHere means that an attempt has bound the pod to the node of the bind.
	BoundHere State = "bound here"
	// BoundElsewhere means that the pod is bound to another node.
	BoundElsewhere State = "bound elsewhere"
	// Gone means that the pod does not exist, or is being deleted and has no node. Another pod can have its name.
	Gone State = "gone"
)

// Of returns the state of the pod with the UID, for a bind to the node. pod is the
// current pod with the name, or nil. A pod stays bound while it is being deleted and after it
// has finished.
func Of(pod *corev1.Pod, uid types.UID, node string) State {
	switch {
	case pod == nil, pod.UID != uid:
		return Gone
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

// PageSize is the page size for lists of pods from the API server. Pods of a tenant can have more than 1 MiB each, also in their metadata.
const PageSize = 20

// EachRunningOn calls the function for each pod on the node that is not finished. The reader must read from the API server.
func EachRunningOn(ctx context.Context, live client.Reader, node string, do func(*metav1.PartialObjectMetadata)) error {
	running := client.MatchingFieldsSelector{Selector: fields.AndSelectors(
		fields.OneTermEqualSelector("spec.nodeName", node),
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)),
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed)),
	)}
	for next := ""; ; {
		page := &metav1.PartialObjectMetadataList{}
		page.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodList"))
		if err := live.List(ctx, page, running, client.Limit(PageSize), client.Continue(next)); err != nil {
			return err
		}
		for i := range page.Items {
			do(&page.Items[i])
		}
		if next = page.Continue; next == "" {
			return nil
		}
	}
}

// MaxVisits is the number of nodes that one call of Visit visits. Each costs a list of its pods. With 5,000 nodes, Tidy of a plugin reaches
// every node within twenty minutes.
const MaxVisits = 500

// Round visits nodes in turns. It is not safe for concurrent use. last is the node that was visited last.
type Round struct{ last string }

// Visit calls the function for up to MaxVisits of the nodes, after those that the last call visited, and joins the errors. If the context ends,
// the next call continues; without progress, that is a failure.
func (r *Round) Visit(ctx context.Context, nodes sets.Set[string], visit func(ctx context.Context, node string) error) error {
	all := sets.List(nodes)
	begin, _ := slices.BinarySearch(all, r.last+"\x00")
	var errs []error
	for i := range min(len(all), MaxVisits) {
		r.last = all[(begin+i)%len(all)]
		err := visit(ctx, r.last)
		if ctx.Err() != nil {
			if i == 0 {
				errs = append(errs, context.Cause(ctx))
			}
			break
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// IsSystem returns whether the pod is a static pod, a pod of a DaemonSet, or a pod that the node or the cluster
// cannot work without. A plugin that limits or delays the use of nodes exempts such pods, because the nodes can
// depend on them.
func IsSystem(pod *corev1.Pod) bool {
	// The names of k8s.io/kubernetes/pkg/apis/scheduling.
	switch pod.Spec.PriorityClassName {
	case "system-node-critical", "system-cluster-critical":
		return true
	}
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return true
	}
	owner := metav1.GetControllerOfNoCopy(pod)
	return owner != nil && (owner.Kind == "DaemonSet" || owner.Kind == "Node")
}
