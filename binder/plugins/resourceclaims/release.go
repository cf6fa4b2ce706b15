// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package resourceclaims

import (
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
)

// touched returns the claims that may have the attempt's mark. An attempt knows the
// claims of its pod and those that it has written. Of a recovered attempt only the mark
// is left, so that all claims of the namespace that have marks are looked at.
func (p *Plugin) touched(ctx context.Context, bc *framework.BindContext) ([]client.ObjectKey, error) {
	var keys []client.ObjectKey
	if bc.Recovered {
		var claims resourcev1.ResourceClaimList
		err := p.o.Cached.List(ctx, &claims, client.InNamespace(bc.Pod.Namespace), client.MatchingFields{markedIndex: "true"}, client.UnsafeDisableDeepCopy)
		for i := range claims.Items {
			if p.markOn(bc, &claims.Items[i]) != "" {
				keys = append(keys, client.ObjectKeyFromObject(&claims.Items[i]))
			}
		}
		return keys, err
	}
	for key := range writtenBy(bc) {
		keys = append(keys, key)
	}
	refs, _ := references(bc.Pod) // Without references it has no claims.
	for _, ref := range refs {
		if key := (client.ObjectKey{Namespace: bc.Pod.Namespace, Name: ref.claim}); ref.claim != "" && !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, func(a, b client.ObjectKey) int { return strings.Compare(a.String(), b.String()) })
	return keys, nil
}

// releaseConflicts is how many conflicts one roll-back of a claim bears. The engine and
// the sweep repeat it later. The claim's owner can change it at any rate.
const releaseConflicts = 10

// release takes the attempt's reservation, and its mark, off the claim, and says
// what it undid.
func (p *Plugin) release(ctx context.Context, bc *framework.BindContext, key client.ObjectKey) (string, error) {
	undone := ""
	for conflicts := 0; ; {
		did, over, err := p.releaseStep(ctx, bc, key)
		if did != "" && err == nil {
			undone = did
		}
		if apierrors.IsConflict(err) {
			conflicts++
		}
		if over || err != nil && (!apierrors.IsConflict(err) || conflicts > releaseConflicts) {
			return undone, client.IgnoreNotFound(err)
		}
	}
}

// releaseStep makes one write, or finds that it is over. It fails with a conflict
// when the claim has changed since it was read.
//
// The mark says only which attempt to look at. The claim's reservation and the pod that
// it names decide. The mark alone goes while another attempt at the pod's bind has
// marked the claim, for the reservation is that one's as well, and when the pod is
// bound, for it is in use.
func (p *Plugin) releaseStep(ctx context.Context, bc *framework.BindContext, key client.ObjectKey) (did string, over bool, err error) {
	claim := &resourcev1.ResourceClaim{}
	if err := p.o.Live.Get(ctx, key, claim); err != nil {
		return "", false, err
	}
	if p.markOn(bc, claim) == "" {
		return "", true, nil
	}
	f := fateNone
	if user, ok := reservations(claim)[bc.Pod.UID]; ok {
		if user != bc.Pod.Name {
			// The sweep has decided about another pod. Its next list of the marks names this one.
			return "", true, nil
		}
		if f, err = p.fateOf(ctx, client.ObjectKey{Namespace: claim.Namespace, Name: user}, bc.Pod.UID); err != nil {
			return "", false, err
		}
	}
	if f == fateGone || f != fateBound && !markedByOthers(claim, p.o.Domain, bc.Pod.UID, bc.Attempt) {
		if did, err = p.giveBack(ctx, bc, claim, f); err != nil || did != "" {
			return did, false, err
		}
	}
	err = p.takeMarks(ctx, claim, pointless(claim, p.o.Domain, bc.Pod.UID, bc.Attempt, f))
	return "", err == nil, err
}

// fateOf reads the pod that the claim is reserved for. An attempt that has bound the
// pod has taken its mark off. So the claim is read first, and then the pod.
func (p *Plugin) fateOf(ctx context.Context, name client.ObjectKey, uid types.UID) (fate, error) {
	pod := &corev1.Pod{}
	err := p.o.Live.Get(ctx, name, pod)
	switch {
	case apierrors.IsNotFound(err), err == nil && pod.UID != uid:
		return fateGone, nil
	case err != nil:
		return "", framework.FromAPI(framework.Object{Kind: "Pod", Namespace: name.Namespace, Name: name.Name}, "reading it", err)
	case pod.Spec.NodeName != "":
		return fateBound, nil
	default:
		return fatePending, nil
	}
}

// giveBack undoes one thing that the attempt wrote into the claim's status, and
// says what; "" when nothing is left. Each write is on the condition that the claim
// is as it was read: an attempt that marks it now may rely on the reservation.
func (p *Plugin) giveBack(ctx context.Context, bc *framework.BindContext, claim *resourcev1.ResourceClaim, f fate) (string, error) {
	if f != fateNone && reservedByOthers(claim, bc.Pod.UID) {
		return "", nil // They take it back themselves, or use it.
	}
	if p.o.Allocator != nil && claim.Status.Allocation != nil {
		if undone, err := p.o.Allocator.Undo(ctx, bc, claim); err != nil || undone {
			return "gave back the devices of", err
		}
	}
	if f == fateNone {
		return "", nil
	}
	return "released its reservation of", p.o.Status.Status().Patch(ctx, claim.DeepCopy(), patch(types.StrategicMergePatchType, map[string]any{
		"metadata": map[string]any{"uid": claim.UID, "resourceVersion": claim.ResourceVersion},
		"status":   map[string]any{"reservedFor": []any{map[string]any{"$patch": "delete", "uid": bc.Pod.UID}}},
	}), fieldOwner)
}

// takeMarks removes the marks, on the condition that the claim is as it was read:
// whether others have marked it decides about the reservation.
func (p *Plugin) takeMarks(ctx context.Context, claim *resourcev1.ResourceClaim, keys []string) error {
	return p.o.Writer.Patch(ctx, claim.DeepCopy(), patch(types.MergePatchType, map[string]any{"metadata": map[string]any{
		"uid": claim.UID, "resourceVersion": claim.ResourceVersion, "annotations": removed(keys),
	}}), fieldOwner)
}

// unmark removes all marks for the bound pod and leaves its reservation. Marks of
// other attempts protect nothing any more.
func (p *Plugin) unmark(ctx context.Context, bc *framework.BindContext, key client.ObjectKey) error {
	claim := &resourcev1.ResourceClaim{}
	// The cache may be behind: the attempt's own mark is among the keys in any case.
	if err := p.o.Cached.Get(ctx, key, claim); client.IgnoreNotFound(err) != nil {
		return err
	}
	if had, wrote := writtenBy(bc)[key]; p.markOn(bc, claim) == "" && (!wrote || had != nil && p.markOn(bc, had) == "") {
		return nil
	}
	keys := pointless(claim, p.o.Domain, bc.Pod.UID, bc.Attempt, fateBound)
	marked := &resourcev1.ResourceClaim{}
	marked.Namespace, marked.Name = key.Namespace, key.Name
	return client.IgnoreNotFound(p.o.Writer.Patch(ctx, marked, patch(types.MergePatchType, map[string]any{"metadata": map[string]any{
		"annotations": removed(keys),
	}}), fieldOwner))
}

// removed is the annotations of a merge patch that removes the keys.
func removed(keys []string) map[string]any {
	gone := map[string]any{}
	for _, key := range keys {
		gone[key] = nil
	}
	return gone
}
