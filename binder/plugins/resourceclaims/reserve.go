// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package resourceclaims

import (
	"context"
	"encoding/json"
	"maps"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
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
var written = framework.NewExtensionKey[map[client.ObjectKey]*resourcev1.ResourceClaim](Name + "/written")

// writtenBy returns what the attempt has written; the caller does not change it.
func writtenBy(bc *framework.BindContext) map[client.ObjectKey]*resourcev1.ResourceClaim {
	had, err := written.Get(bc)
	if err != nil {
		return nil // Nothing yet.
	}
	return had
}

// remember notes that the attempt writes the claim, or what the API server
// answered.
func remember(bc *framework.BindContext, key client.ObjectKey, claim *resourcev1.ResourceClaim) {
	all := maps.Clone(writtenBy(bc))
	if all == nil {
		all = map[client.ObjectKey]*resourcev1.ResourceClaim{}
	}
	all[key] = claim
	written.Set(bc, all)
}

// markOn is the attempt's mark on the claim, or "".
func (p *Plugin) markOn(bc *framework.BindContext, claim *resourcev1.ResourceClaim) string {
	return claim.Annotations[markKey(p.o.Domain, bc.Pod.UID, bc.Attempt)]
}

// reserve adds the pod to the claim's reservations, unless it is there. The mark
// comes first. Where the claim turns out to be something else than the survey saw,
// the next one judges it.
func (p *Plugin) reserve(ctx context.Context, bc *framework.BindContext, v view, seen judgement) error {
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
			claim, err = p.putMark(ctx, bc, claim)
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
func (p *Plugin) putMark(ctx context.Context, bc *framework.BindContext, claim *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error) {
	markAs, value := markKey(p.o.Domain, bc.Pod.UID, bc.Attempt), mark{Pod: bc.Pod.Name, Node: bc.Node.Name}.encode()
	if err := p.roomFor(claim, markAs, value); err != nil {
		return nil, err
	}
	key := client.ObjectKeyFromObject(claim)
	if writtenBy(bc)[key] == nil || p.markOn(bc, writtenBy(bc)[key]) == "" {
		remember(bc, key, nil)
	}
	marked := claim.DeepCopy()
	err := p.o.Writer.Patch(ctx, marked, patch(types.MergePatchType, map[string]any{"metadata": map[string]any{
		"uid":         claim.UID,
		"annotations": map[string]any{markAs: value},
	}}), fieldOwner)
	if apierrors.IsInvalid(err) {
		// It has another UID.
		return nil, framework.Wait(claimObject(claim.Namespace, claim.Name), "the claim was deleted and made anew meanwhile").Because(err).Advise("repeat the Binding")
	}
	if err != nil {
		return nil, p.failed(claim, "marking it for this bind", err)
	}
	remember(bc, key, marked)
	return marked, nil
}

// roomFor says why the claim cannot take one more mark, or nil. Its annotations are
// the tenant's, and the API server limits their size.
func (p *Plugin) roomFor(claim *resourcev1.ResourceClaim, key, value string) error {
	about := claimObject(claim.Namespace, claim.Name)
	if _, had := claim.Annotations[key]; !had && len(markKeys(claim, p.o.Domain)) >= maxMarks {
		return framework.Wait(about, "%d marks %s* are on the claim, and Prebind adds no more", maxMarks, markPrefix(p.o.Domain)).
			Advise("repeat the Binding: Prebind removes marks that nothing belongs to")
	}
	size := len(key) + len(value)
	for k, v := range claim.Annotations {
		size += len(k) + len(v)
	}
	if size > validation.TotalAnnotationSizeLimitB {
		return framework.Refuse(about, "its annotations leave no room for the mark of this bind: together they may have %d bytes", validation.TotalAnnotationSizeLimitB).
			Advise("remove annotations from the claim")
	}
	return nil
}

// addReservation adds the pod to the reservations of the claim, on the condition
// that it still has this attempt's mark: a write that arrives late, when the mark
// was taken off, must not leave a reservation behind. It names nothing else of the
// claim, so that many pods reserve it at a time. When the claim has changed it
// returns it as it is then.
func (p *Plugin) addReservation(ctx context.Context, bc *framework.BindContext, claim *resourcev1.ResourceClaim, again bool) (*resourcev1.ResourceClaim, error) {
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

// failed makes an answer of a write that the API server refused.
func (p *Plugin) failed(claim *resourcev1.ResourceClaim, doing string, err error) error {
	about := claimObject(claim.Namespace, claim.Name)
	if apierrors.IsNotFound(err) {
		return framework.Refuse(about, "the claim is gone").Because(err).Advise("create it, or correct the pod")
	}
	return framework.FromAPI(about, doing, err).Advise("see whether Prebind has the permissions of config/webhook/plugins/resource-claims")
}

// patch makes a patch of values that can always be encoded.
func patch(kind types.PatchType, content any) client.Patch {
	encoded, err := json.Marshal(content)
	if err != nil {
		encoded = []byte("{}")
	}
	return client.RawPatch(kind, encoded)
}
