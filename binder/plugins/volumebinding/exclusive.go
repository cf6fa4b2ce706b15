// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"context"
	"maps"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
)

// A ReadWriteOncePod claim is used by one pod at a time. Which pods use it is not
// in the cache, which holds pods without a node only, so for such a claim, and
// for no other, the pods of the namespace are listed.
const podPage = 500

// usingPods selects the pods that may use a volume: those with a node that have
// not ended. These are the pods that kube-scheduler counts.
func usingPods() client.MatchingFieldsSelector {
	return client.MatchingFieldsSelector{Selector: fields.AndSelectors(
		fields.OneTermNotEqualSelector("spec.nodeName", ""),
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)),
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed)),
	)}
}

// uses says whether the pod has, or may have, the claim mounted.
func uses(pod *corev1.Pod, claim string) bool {
	if pod.Spec.NodeName == "" || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return false
	}
	for _, v := range pod.Spec.Volumes {
		if v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim {
			return true
		}
	}
	return false
}

// checkExclusive checks that no other pod uses one of these claims.
func (p *Plugin) checkExclusive(ctx context.Context, pod *corev1.Pod, claims []*corev1.PersistentVolumeClaim) error {
	if len(claims) == 0 {
		return nil
	}
	for next := ""; ; {
		var page corev1.PodList
		err := p.live.List(ctx, &page, client.InNamespace(pod.Namespace), usingPods(), client.Limit(podPage), client.Continue(next))
		if err != nil {
			return framework.FromAPI(object(claims[0]), "listing the pods that may use it", err)
		}
		for i := range page.Items {
			if err := checkUser(&page.Items[i], pod, claims); err != nil {
				return err
			}
		}
		if next = page.Continue; next == "" {
			return nil
		}
	}
}

// checkUser refuses when the other pod uses one of the claims.
func checkUser(other, pod *corev1.Pod, claims []*corev1.PersistentVolumeClaim) error {
	if other.UID == pod.UID {
		return nil
	}
	for _, claim := range claims {
		if uses(other, claim.Name) {
			return framework.Refuse(object(claim), "the pod %s on the node %s uses the claim, and only one pod may at a time (ReadWriteOncePod)", other.Name, other.Spec.NodeName).
				Advise("bind this pod when the other has ended")
		}
	}
	return nil
}

// reserveExclusive is the last check before the pod is bound. It reserves the claims
// for the pod, so that no other bind in this replica can come in between, and then
// checks that no other pod uses them. PostBind and PreBindRollBack release them,
// one of which the engine calls in any case.
func (p *Plugin) reserveExclusive(ctx context.Context, bc *framework.BindContext, claims []*corev1.PersistentVolumeClaim) error {
	if claim, by, ok := p.reservations.reserve(claims, holderOf(bc)); !ok {
		return framework.Wait(object(claim), "the pod %s, which uses the claim, is being bound, and only one pod may at a time (ReadWriteOncePod)", by.name).
			Advise("repeat the Binding; it is refused if the other pod has got the claim")
	}
	return p.checkExclusive(ctx, bc.Pod, claims)
}

// reservations are the ReadWriteOncePod claims of pods that are being bound, by the
// claim's UID. It is safe for concurrent use.
type reservations struct {
	mu      sync.Mutex
	byClaim map[types.UID]holder
}

// holder is a bind. A pod's later bind to another node takes over.
type holder struct {
	pod  types.UID
	name string
	node string
}

func holderOf(bc *framework.BindContext) holder {
	return holder{pod: bc.Pod.UID, name: bc.Pod.Name, node: bc.Node.Name}
}

// reserve reserves all of the claims for the bind, or none: then it returns one that
// another pod has, and that pod's bind. A bind may reserve a claim again.
func (r *reservations) reserve(claims []*corev1.PersistentVolumeClaim, by holder) (*corev1.PersistentVolumeClaim, holder, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, claim := range claims {
		if held, ok := r.byClaim[claim.UID]; ok && held.pod != by.pod {
			return claim, held, false
		}
	}
	for _, claim := range claims {
		r.byClaim[claim.UID] = by
	}
	return nil, by, true
}

// release ends all reservations of the bind.
func (r *reservations) release(by holder) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.byClaim, func(_ types.UID, held holder) bool { return held == by })
}
