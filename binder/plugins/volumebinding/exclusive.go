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

// podPage is the page size for lists of pods. The cache holds only pods without a node, so the
// plugin lists the pods of the namespace from the API server, for ReadWriteOncePod claims only.
const podPage = 500

// usingPods selects the pods that can use a volume: those that have a node and have not ended,
// as in kube-scheduler.
func usingPods() client.MatchingFieldsSelector {
	return client.MatchingFieldsSelector{Selector: fields.AndSelectors(
		fields.OneTermNotEqualSelector("spec.nodeName", ""),
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)),
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed)),
	)}
}

// uses returns whether the pod can have the claim mounted.
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

// claimUse is a claim and a pod that uses it.
type claimUse struct {
	claim *corev1.PersistentVolumeClaim
	by    *corev1.Pod
}

func (u *claimUse) refuse() *framework.Error {
	return framework.Refuse(object(u.claim), "pod %s on node %s uses the ReadWriteOncePod claim", u.by.Name, u.by.Spec.NodeName).
		Advise("bind this pod after the other pod has ended")
}

// findUser returns the first of the claims that a pod other than this one uses, or nil. It
// makes no request if there are no claims. The reader must be live.
func findUser(ctx context.Context, live framework.Reader, pod *corev1.Pod, claims []*corev1.PersistentVolumeClaim) (*claimUse, error) {
	if len(claims) == 0 {
		return nil, nil
	}
	for next := ""; ; {
		var page corev1.PodList
		err := live.List(ctx, &page, client.InNamespace(pod.Namespace), usingPods(), client.Limit(podPage), client.Continue(next))
		if err != nil {
			return nil, framework.FromAPI(object(claims[0]), "listing the pods that can use the claim", err)
		}
		for i := range page.Items {
			other := &page.Items[i]
			for _, claim := range claims {
				if other.UID != pod.UID && uses(other, claim.Name) {
					return &claimUse{claim: claim, by: other}, nil
				}
			}
		}
		if next = page.Continue; next == "" {
			return nil, nil
		}
	}
}

// reserveExclusive reserves the claims for the pod, so that no other bind in this replica
// can get them, and then checks that no other pod uses them. PostBind and PreBindRollBack
// release them.
func (p *Plugin) reserveExclusive(ctx context.Context, bc *framework.BindContext, claims []*corev1.PersistentVolumeClaim) error {
	if claim, by, ok := p.reservations.reserve(claims, holderOf(bc)); !ok {
		return framework.Wait(object(claim), "pod %s is being bound with the ReadWriteOncePod claim", by.name).
			Advise("retry the Binding")
	}
	use, err := findUser(ctx, p.h.Live, bc.Pod, claims)
	if use != nil {
		return use.refuse()
	}
	return err
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
