// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package resourceclaims

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/api"
)

// What the plugin may do. Since Kubernetes 1.36 a change of reservations or
// allocations takes the permission for resourceclaims/binding as well, with the verb
// of the request, in all namespaces.
//
// +kubebuilder:rbac:groups=resource.k8s.io,resources=resourceclaims,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=resource.k8s.io,resources=resourceclaims/status,verbs=patch
// +kubebuilder:rbac:groups=resource.k8s.io,resources=resourceclaims/binding,verbs=patch

// reserveTries is how often a reservation is tried that the API server refuses,
// although nothing seems to be in its way.
const reserveTries = 5

// written holds, in the bind context, the claims that this attempt writes, by
// name: nil before the first answer of the API server.
var written = api.NewExtensionKey[map[client.ObjectKey]*resourcev1.ResourceClaim](Name + "/written")

// writtenBy returns what the attempt has written; the caller does not change it.
func writtenBy(bc *api.BindContext) map[client.ObjectKey]*resourcev1.ResourceClaim {
	had, err := written.Get(bc)
	if err != nil {
		return nil // Nothing yet.
	}
	return had
}

// remember notes that the attempt writes the claim, or what the API server
// answered.
func remember(bc *api.BindContext, key client.ObjectKey, claim *resourcev1.ResourceClaim) {
	all := maps.Clone(writtenBy(bc))
	if all == nil {
		all = map[client.ObjectKey]*resourcev1.ResourceClaim{}
	}
	all[key] = claim
	written.Set(bc, all)
}

// markOn is the attempt's mark on the claim, or "".
func (p *Plugin) markOn(bc *api.BindContext, claim *resourcev1.ResourceClaim) string {
	return claim.Annotations[markKey(p.o.Domain, bc.Pod.UID, bc.Attempt)]
}

// touched are the claims that may have the attempt's mark: by what it remembers,
// and by the cache.
func (p *Plugin) touched(ctx context.Context, bc *api.BindContext) []client.ObjectKey {
	keys := map[client.ObjectKey]bool{}
	for key, claim := range writtenBy(bc) {
		if claim == nil || p.markOn(bc, claim) != "" {
			keys[key] = true
		}
	}
	var claims resourcev1.ResourceClaimList
	// The cache always answers.
	_ = p.o.Cached.List(ctx, &claims, client.InNamespace(bc.Pod.Namespace), client.UnsafeDisableDeepCopy)
	for i := range claims.Items {
		if p.markOn(bc, &claims.Items[i]) != "" {
			keys[client.ObjectKeyFromObject(&claims.Items[i])] = true
		}
	}
	return slices.SortedFunc(maps.Keys(keys), func(a, b client.ObjectKey) int { return strings.Compare(a.String(), b.String()) })
}

// reserve adds the pod to the claim's reservations, unless it is there. The mark
// comes first. Where the claim turns out to be something else than the survey saw,
// the next one judges it.
func (p *Plugin) reserve(ctx context.Context, bc *api.BindContext, v view, seen judgement) error {
	key := client.ObjectKeyFromObject(seen.claim)
	claim, err := p.read(ctx, key)
	for left := reserveTries; err == nil; {
		remember(bc, key, claim)
		var j judgement
		if j, err = p.decide(ctx, bc, v, seen.ref, claim); err != nil {
			return err
		}
		switch {
		case (j.state == unreserved || j.state == borrowed) && p.markOn(bc, claim) == "":
			claim, err = p.putMark(ctx, bc, claim, mark{Pod: bc.Pod.Name, Node: bc.Node.Name})
		case j.state == unreserved:
			left--
			claim, err = p.addReservation(ctx, bc, claim, left > 0)
		default:
			return nil
		}
	}
	return err
}

// putMark marks the claim with the attempt and returns it as it is then.
func (p *Plugin) putMark(ctx context.Context, bc *api.BindContext, claim *resourcev1.ResourceClaim, m mark) (*resourcev1.ResourceClaim, error) {
	key := client.ObjectKeyFromObject(claim)
	if writtenBy(bc)[key] == nil || p.markOn(bc, writtenBy(bc)[key]) == "" {
		remember(bc, key, nil)
	}
	marked := claim.DeepCopy()
	err := p.o.Writer.Patch(ctx, marked, patch(types.MergePatchType, map[string]any{"metadata": map[string]any{
		"uid":         claim.UID,
		"annotations": map[string]any{markKey(p.o.Domain, bc.Pod.UID, bc.Attempt): m.encode()},
	}}), fieldOwner)
	if apierrors.IsInvalid(err) {
		// It has another UID.
		return nil, api.Wait(claimObject(claim.Namespace, claim.Name), "the claim was deleted and made anew meanwhile").Because(err).Advise("repeat the Binding")
	}
	if err != nil {
		return nil, p.failed(claim, "marking it for this bind", err)
	}
	remember(bc, key, marked)
	return marked, nil
}

// addReservation adds the pod to the reservations of the claim, on the condition
// that it still has this attempt's mark: a write that arrives late, when the mark
// was taken off, must not leave a reservation behind. It names nothing else of the
// claim, so that many pods reserve it at a time. When the claim has changed it
// returns it as it is then.
func (p *Plugin) addReservation(ctx context.Context, bc *api.BindContext, claim *resourcev1.ResourceClaim, again bool) (*resourcev1.ResourceClaim, error) {
	key := markKey(p.o.Domain, bc.Pod.UID, bc.Attempt)
	consumer := resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: bc.Pod.Name, UID: bc.Pod.UID}
	steps := []map[string]any{
		{"op": "test", "path": "/metadata/uid", "value": claim.UID},
		{"op": "test", "path": "/metadata/annotations/" + strings.ReplaceAll(key, "/", "~1"), "value": claim.Annotations[key]},
	}
	if len(claim.Status.ReservedFor) == 0 {
		steps = append(steps,
			map[string]any{"op": "test", "path": "/status/reservedFor", "value": nil},
			map[string]any{"op": "add", "path": "/status/reservedFor", "value": []any{consumer}})
	} else {
		steps = append(steps, map[string]any{"op": "add", "path": "/status/reservedFor/-", "value": consumer})
	}
	reserved := claim.DeepCopy()
	err := p.o.Status.Status().Patch(ctx, reserved, patch(types.JSONPatchType, steps), fieldOwner)
	switch {
	case err == nil:
		return reserved, nil
	case again && (apierrors.IsInvalid(err) || apierrors.IsConflict(err)):
		return p.read(ctx, client.ObjectKeyFromObject(claim))
	default:
		return nil, p.failed(claim, "reserving it for the pod", err)
	}
}

// release takes the attempt's reservation, and its mark, off the claim, and says
// what it undid. The mark alone goes while another attempt at the pod's bind has
// marked the claim, for the reservation is that one's as well, and when the pod is
// bound, for it is in use.
func (p *Plugin) release(ctx context.Context, bc *api.BindContext, key client.ObjectKey) (string, error) {
	undone := ""
	for {
		did, over, err := p.releaseStep(ctx, bc, key)
		if did != "" && err == nil {
			undone = did
		}
		if over || err != nil && !apierrors.IsConflict(err) {
			return undone, client.IgnoreNotFound(err)
		}
	}
}

// releaseStep makes one write, or finds that it is over. It fails with a conflict
// when the claim has changed since it was read.
func (p *Plugin) releaseStep(ctx context.Context, bc *api.BindContext, key client.ObjectKey) (did string, over bool, err error) {
	claim := &resourcev1.ResourceClaim{}
	if err := p.o.Live.Get(ctx, key, claim); err != nil {
		return "", false, err
	}
	value := p.markOn(bc, claim)
	if value == "" {
		return "", true, nil
	}
	if !markedByOthers(claim, p.o.Domain, bc.Pod.UID, bc.Attempt) {
		if did, err = p.giveBack(ctx, bc, claim, value); err != nil || did != "" {
			return did, false, err
		}
	}
	err = p.takeMark(ctx, bc, claim)
	return "", err == nil, err
}

// giveBack undoes one thing that the attempt wrote into the claim's status, and
// says what; "" when nothing is left. Each write is on the condition that the claim
// is as it was read: an attempt that marks it now may rely on the reservation.
func (p *Plugin) giveBack(ctx context.Context, bc *api.BindContext, claim *resourcev1.ResourceClaim, marked string) (string, error) {
	m, _ := decodeMark(marked)
	if reservedByOthers(claim, bc.Pod.UID) {
		return "", nil // They take it back themselves, or use it.
	}
	allocated := m.Allocated && p.o.Allocator != nil && claim.Status.Allocation != nil
	reserved := reservedFor(claim, bc.Pod.UID)
	if !allocated && !reserved {
		return "", nil
	}
	// An attempt that has bound the pod has taken its mark off. So the claim is read
	// first, and then the pod.
	if bound, err := p.bound(ctx, bc); err != nil || bound {
		return "", err
	}
	if allocated {
		if undone, err := p.o.Allocator.Undo(ctx, bc, claim); err != nil || undone {
			return "gave back the devices of", err
		}
	}
	if !reserved {
		return "", nil
	}
	return "released its reservation of", p.o.Status.Status().Patch(ctx, claim.DeepCopy(), patch(types.StrategicMergePatchType, map[string]any{
		"metadata": map[string]any{"uid": claim.UID, "resourceVersion": claim.ResourceVersion},
		"status":   map[string]any{"reservedFor": []any{map[string]any{"$patch": "delete", "uid": bc.Pod.UID}}},
	}), fieldOwner)
}

// bound says whether the pod is bound, to whichever node.
func (p *Plugin) bound(ctx context.Context, bc *api.BindContext) (bool, error) {
	pod, err := p.podAsItIs(ctx, bc)
	return pod != nil && pod.Spec.NodeName != "", err
}

// takeMark removes the mark, on the condition that the claim is as it was read:
// whether others have marked it decides about the reservation.
func (p *Plugin) takeMark(ctx context.Context, bc *api.BindContext, claim *resourcev1.ResourceClaim) error {
	return p.o.Writer.Patch(ctx, claim.DeepCopy(), patch(types.MergePatchType, map[string]any{"metadata": map[string]any{
		"uid": claim.UID, "resourceVersion": claim.ResourceVersion,
		"annotations": map[string]any{markKey(p.o.Domain, bc.Pod.UID, bc.Attempt): nil},
	}}), fieldOwner)
}

// unmark removes the attempt's mark and leaves the reservation.
func (p *Plugin) unmark(ctx context.Context, bc *api.BindContext, key client.ObjectKey) error {
	claim := &resourcev1.ResourceClaim{}
	claim.Namespace, claim.Name = key.Namespace, key.Name
	return client.IgnoreNotFound(p.o.Writer.Patch(ctx, claim, patch(types.MergePatchType, map[string]any{"metadata": map[string]any{
		"annotations": map[string]any{markKey(p.o.Domain, bc.Pod.UID, bc.Attempt): nil},
	}}), fieldOwner))
}

func reservedFor(claim *resourcev1.ResourceClaim, pod types.UID) bool {
	return slices.ContainsFunc(claim.Status.ReservedFor, func(r resourcev1.ResourceClaimConsumerReference) bool { return r.UID == pod })
}

// failed makes an answer of a write that the API server refused.
func (p *Plugin) failed(claim *resourcev1.ResourceClaim, doing string, err error) error {
	about := claimObject(claim.Namespace, claim.Name)
	if apierrors.IsNotFound(err) {
		return api.Refuse(about, "the claim is gone").Because(err).Advise("create it, or correct the pod")
	}
	return api.FromAPI(about, doing, err).Advise("see whether Prebind has the permissions of config/webhook/plugins/resource-claims")
}

// patch makes a patch of values that can always be encoded.
func patch(kind types.PatchType, content any) client.Patch {
	encoded, err := json.Marshal(content)
	if err != nil {
		encoded = []byte("{}")
	}
	return client.RawPatch(kind, encoded)
}
