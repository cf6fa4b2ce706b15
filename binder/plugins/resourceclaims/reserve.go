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
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/api"
)

// What the plugin may do. Since Kubernetes 1.36 a change of reservations or
// allocations takes the permission for resourceclaims/binding as well.
//
// +kubebuilder:rbac:groups=resource.k8s.io,resources=resourceclaims,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=resource.k8s.io,resources=resourceclaims/status,verbs=patch
// +kubebuilder:rbac:groups=resource.k8s.io,resources=resourceclaims/binding,verbs=patch

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

// touched are the claims that the attempt may have written: those that it
// remembers, those that the cache has its mark on, and more.
func (p *Plugin) touched(ctx context.Context, bc *api.BindContext, more ...client.ObjectKey) []client.ObjectKey {
	keys := map[client.ObjectKey]bool{}
	for _, key := range more {
		keys[key] = true
	}
	for key := range writtenBy(bc) {
		keys[key] = true
	}
	var claims resourcev1.ResourceClaimList
	// The cache always answers.
	_ = p.o.Cached.List(ctx, &claims, client.InNamespace(bc.Pod.Namespace), client.UnsafeDisableDeepCopy)
	name := markKey(p.o.Domain, bc.Pod.UID, bc.Attempt)
	for i := range claims.Items {
		if _, marked := claims.Items[i].Annotations[name]; marked {
			keys[client.ObjectKeyFromObject(&claims.Items[i])] = true
		}
	}
	return slices.SortedFunc(maps.Keys(keys), func(a, b client.ObjectKey) int { return strings.Compare(a.String(), b.String()) })
}

// reserve adds the pod to the claim's reservations, unless it is there. The mark
// comes first.
func (p *Plugin) reserve(ctx context.Context, bc *api.BindContext, claim *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error) {
	claim, err := p.read(ctx, client.ObjectKeyFromObject(claim))
	if err != nil {
		return nil, err
	}
	if resourceclaim.IsReservedForPod(bc.Pod, claim, true) {
		// By an earlier round of this attempt, or by somebody else: the cache is behind.
		remember(bc, client.ObjectKeyFromObject(claim), claim)
		return claim, nil
	}
	marked, err := p.putMark(ctx, bc, claim, mark{Pod: bc.Pod.Name, Node: bc.Node.Name})
	if err != nil {
		return nil, err
	}
	key := client.ObjectKeyFromObject(claim)
	if resourceclaim.IsReservedForPod(bc.Pod, marked, true) {
		// Somebody was faster, and it was not this attempt.
		if !markedByOthers(marked, p.o.Domain, bc.Pod.UID, bc.Attempt) {
			return marked, p.unmark(ctx, bc, key)
		}
		return marked, nil
	}
	if _, err := judge(bc.Pod, bc.Node, reference{of: claim.Name, claim: claim.Name}, marked, p.o.BindingTimeout, p.o.Clock.Now()); err != nil {
		return nil, err
	}
	reserved := marked.DeepCopy()
	err = p.o.Status.Status().Patch(ctx, reserved, patch(types.StrategicMergePatchType, map[string]any{
		"metadata": map[string]any{"uid": claim.UID},
		"status": map[string]any{"reservedFor": []any{map[string]any{
			"resource": "pods", "name": bc.Pod.Name, "uid": bc.Pod.UID,
		}}},
	}))
	if err != nil {
		return nil, p.failed(claim, "reserving it for the pod", err)
	}
	remember(bc, key, reserved)
	return reserved, nil
}

// putMark marks the claim with the attempt and returns it as it is then.
func (p *Plugin) putMark(ctx context.Context, bc *api.BindContext, claim *resourcev1.ResourceClaim, m mark) (*resourcev1.ResourceClaim, error) {
	key := client.ObjectKeyFromObject(claim)
	if writtenBy(bc)[key] == nil {
		remember(bc, key, nil)
	}
	marked := claim.DeepCopy()
	err := p.o.Writer.Patch(ctx, marked, patch(types.MergePatchType, map[string]any{"metadata": map[string]any{
		"uid":         claim.UID,
		"annotations": map[string]any{markKey(p.o.Domain, bc.Pod.UID, bc.Attempt): m.encode()},
	}}))
	if err != nil {
		return nil, p.failed(claim, "marking it for this bind", err)
	}
	remember(bc, key, marked)
	return marked, nil
}

// release takes the attempt's reservation, and its mark, off the claim, and says
// what it undid. While another attempt at the pod's bind has marked the claim, the
// reservation is that one's as well, and only the mark goes.
func (p *Plugin) release(ctx context.Context, bc *api.BindContext, key client.ObjectKey) (undone string, err error) {
	for {
		claim := &resourcev1.ResourceClaim{}
		if err := p.o.Live.Get(ctx, key, claim); err != nil {
			return undone, client.IgnoreNotFound(err)
		}
		name := markKey(p.o.Domain, bc.Pod.UID, bc.Attempt)
		value, marked := claim.Annotations[name]
		if !marked {
			return undone, nil
		}
		if !markedByOthers(claim, p.o.Domain, bc.Pod.UID, bc.Attempt) {
			did, err := p.giveBack(ctx, bc, claim, value)
			if apierrors.IsConflict(err) {
				continue
			}
			if err != nil {
				return undone, client.IgnoreNotFound(err)
			}
			if did != "" {
				undone = did
				continue // To take off the mark of the claim as it is then.
			}
		}
		if err := p.takeMark(ctx, claim, name); !apierrors.IsConflict(err) {
			return undone, client.IgnoreNotFound(err)
		}
	}
}

// giveBack undoes one thing that the attempt wrote into the claim's status, and
// says what; "" when nothing is left. Each write is on the condition that the claim
// is as it was read: an attempt that marks it now may rely on the reservation.
func (p *Plugin) giveBack(ctx context.Context, bc *api.BindContext, claim *resourcev1.ResourceClaim, marked string) (string, error) {
	if m, _ := decodeMark(marked); m.Allocated && p.o.Allocator != nil {
		if undone, err := p.o.Allocator.Undo(ctx, bc, claim); err != nil || undone {
			return "gave back the devices of", err
		}
	}
	if !reservedFor(claim, bc.Pod.UID) {
		return "", nil
	}
	return "released its reservation of", p.o.Status.Status().Patch(ctx, claim.DeepCopy(), patch(types.StrategicMergePatchType, map[string]any{
		"metadata": map[string]any{"uid": claim.UID, "resourceVersion": claim.ResourceVersion},
		"status":   map[string]any{"reservedFor": []any{map[string]any{"$patch": "delete", "uid": bc.Pod.UID}}},
	}))
}

// takeMark removes the mark, on the condition that the claim is as it was read:
// whether others have marked it decides about the reservation.
func (p *Plugin) takeMark(ctx context.Context, claim *resourcev1.ResourceClaim, name string) error {
	return p.o.Writer.Patch(ctx, claim.DeepCopy(), patch(types.MergePatchType, map[string]any{"metadata": map[string]any{
		"uid": claim.UID, "resourceVersion": claim.ResourceVersion,
		"annotations": map[string]any{name: nil},
	}}))
}

// unmark removes the attempt's mark and leaves the reservation.
func (p *Plugin) unmark(ctx context.Context, bc *api.BindContext, key client.ObjectKey) error {
	claim := &resourcev1.ResourceClaim{}
	claim.Namespace, claim.Name = key.Namespace, key.Name
	return client.IgnoreNotFound(p.o.Writer.Patch(ctx, claim, patch(types.MergePatchType, map[string]any{"metadata": map[string]any{
		"annotations": map[string]any{markKey(p.o.Domain, bc.Pod.UID, bc.Attempt): nil},
	}})))
}

func reservedFor(claim *resourcev1.ResourceClaim, pod types.UID) bool {
	return slices.ContainsFunc(claim.Status.ReservedFor, func(r resourcev1.ResourceClaimConsumerReference) bool { return r.UID == pod })
}

// failed makes an answer of a write that the API server refused.
func (p *Plugin) failed(claim *resourcev1.ResourceClaim, doing string, err error) error {
	about := claimObject(claim.Namespace, claim.Name)
	switch {
	case apierrors.IsNotFound(err):
		return api.Refuse(about, "the claim is gone").Because(err).Advise("create it, or correct the pod")
	case apierrors.IsInvalid(err):
		// It was allocated, and had a place, when it was looked at.
		return api.Wait(about, "%s was not possible any more: %v", doing, err).Because(err).Advise("repeat the Binding, for it to be judged anew")
	default:
		return api.FromAPI(about, doing, err)
	}
}

// patch makes a patch of values that can always be encoded.
func patch(kind types.PatchType, content map[string]any) client.Patch {
	encoded, err := json.Marshal(content)
	if err != nil {
		encoded = []byte("{}")
	}
	return client.RawPatch(kind, encoded)
}
