// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/api"
)

// A ReadWriteOncePod claim is used by one pod at a time. Which pods use it is not
// in the cache, which holds pods without a node only, so for such a claim, and
// for no other, the pods of the namespace are listed.
const (
	// podPage is how many pods are listed at a time.
	podPage = 500
	// reservedFor is how long a claim is reserved: after it, a list shows a bind that
	// was allowed, or the bind never happens.
	reservedFor = api.BindSettles
)

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
			return api.FromAPI(object(claims[0]), "listing the pods that may use it", err)
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
			return api.Refuse(object(claim), "the pod %s on the node %s uses the claim, and only one pod may at a time (ReadWriteOncePod)", other.Name, other.Spec.NodeName).
				Advise("bind this pod when the other has ended")
		}
	}
	return nil
}

// reserveExclusive is the last word before the pod is bound: it reserves the
// claims for the pod, so that none of the binds under way in this replica can get
// in between, and then checks that no other pod uses them.
func (p *Plugin) reserveExclusive(ctx context.Context, bc *api.BindContext, claims []*corev1.PersistentVolumeClaim) error {
	err := p.reserveAll(ctx, bc, claims)
	if err == nil {
		err = p.checkExclusive(ctx, bc.Pod, claims)
	}
	if err != nil {
		p.reservations.release(holderOf(bc))
	}
	return err
}

func (p *Plugin) reserveAll(ctx context.Context, bc *api.BindContext, claims []*corev1.PersistentVolumeClaim) error {
	for _, claim := range claims {
		held, ok := p.reservations.reserve(claim.UID, holderOf(bc))
		if ok {
			continue
		}
		undecided, err := p.undecided(ctx, bc.Pod.Namespace, held)
		if err != nil {
			return err
		}
		if !undecided {
			p.reservations.release(held)
			_, ok = p.reservations.reserve(claim.UID, holderOf(bc))
		}
		if !ok {
			return api.Wait(object(claim), "the pod %s, which uses the claim, is being bound, and only one pod may at a time (ReadWriteOncePod)", held.name).
				Advise("repeat the Binding; it is refused if the other pod has got the claim")
		}
	}
	return nil
}

// undecided says whether the holder's bind may still come about. When it has, the
// list of pods says so.
func (p *Plugin) undecided(ctx context.Context, namespace string, held holder) (bool, error) {
	pod := &corev1.Pod{}
	found, err := p.readLive(ctx, "Pod", namespace, held.name, pod)
	return found && pod.UID == held.pod && pod.DeletionTimestamp == nil && pod.Spec.NodeName == "", err
}

// reservations are the claims of pods that are being bound. It is safe for
// concurrent use.
type reservations struct {
	clock clock.PassiveClock

	mu      sync.Mutex
	byClaim map[types.UID]reservation
}

// holder is a bind. A pod's later bind to another node takes over.
type holder struct {
	pod  types.UID
	name string
	node string
}

func holderOf(bc *api.BindContext) holder {
	return holder{pod: bc.Pod.UID, name: bc.Pod.Name, node: bc.Node.Name}
}

// reservation is by a bind until a time.
type reservation struct {
	by    holder
	until time.Time
}

func newReservations(c clock.PassiveClock) *reservations {
	return &reservations{clock: c, byClaim: map[types.UID]reservation{}}
}

// reserve says whether the claim is the holder's from now on, for reservedFor, and
// if not, whose it is.
func (r *reservations) reserve(claim types.UID, by holder) (holder, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock.Now()
	for c, held := range r.byClaim {
		if !now.Before(held.until) {
			delete(r.byClaim, c)
		}
	}
	if held, ok := r.byClaim[claim]; ok && held.by.pod != by.pod {
		return held.by, false
	}
	r.byClaim[claim] = reservation{by: by, until: now.Add(reservedFor)}
	return by, true
}

// release ends all reservations of the holder.
func (r *reservations) release(by holder) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c, held := range r.byClaim {
		if held.by == by {
			delete(r.byClaim, c)
		}
	}
}
