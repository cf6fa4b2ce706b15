// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package resourceclaims

import (
	"context"
	"encoding/json"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
)

// takeWrites limits the writes for one claim. The API server can reject a reservation although the claim seems to allow it,
// and another webhook can remove the mark.
const takeWrites = 6

// take marks the claim, and reserves it for the pod. It decides based on the claim in the
// API server.
func (p *Plugin) take(ctx context.Context, bc *framework.BindContext, ref reference) error {
	m := bc.Mark()
	claim, err := p.live(ctx, bc.Pod.Namespace, ref.claim)
	for left := takeWrites; err == nil; left-- {
		take, _, rejected := p.assess(bc, ref, claim)
		switch {
		case rejected != nil || !take:
			return rejected
		case left == 0:
			about, key := framework.ObjectOf(claim), markKey(m.PodUID, m.Attempt)
			return framework.NotYet(about, "its annotation %s: another client or webhook removes annotations %s*", key, markPrefix)
		case markOn(m, claim) == "":
			claim, err = p.mark(ctx, m, claim)
		default:
			claim, err = p.reserve(ctx, m, claim, left > 1)
		}
	}
	return err
}

// live reads the claim from the API server.
func (p *Plugin) live(ctx context.Context, namespace, name string) (*resourcev1.ResourceClaim, error) {
	claim, err := framework.Get(ctx, p.h.Live, &resourcev1.ResourceClaim{}, namespace, name)
	if err == nil && claim == nil {
		return nil, noSuchClaim(namespace, name)
	}
	return claim, err
}

// markOn returns the value of the attempt's mark on the claim, or "".
func markOn(m framework.Mark, claim *resourcev1.ResourceClaim) string {
	return claim.Annotations[markKey(m.PodUID, m.Attempt)]
}

// mark adds the mark of the attempt, and returns the updated claim.
func (p *Plugin) mark(ctx context.Context, m framework.Mark, claim *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error) {
	key, value := markKey(m.PodUID, m.Attempt), mark{Pod: m.Pod.Name, Node: m.Node}.encode()
	if err := roomFor(claim, key, value); err != nil {
		return nil, err
	}
	marked := claim.DeepCopy()
	err := p.h.Writer.Patch(ctx, marked, patch(types.MergePatchType, map[string]any{"metadata": map[string]any{
		"uid":         claim.UID,
		"annotations": map[string]any{key: value},
	}}), fieldOwner)
	if err != nil {
		return nil, failedWrite(claim, "marking it for this bind", err)
	}
	return marked, nil
}

// roomFor returns an error if the claim has no room for another mark. Tenants write
// annotations too, and the API server limits their size.
func roomFor(claim *resourcev1.ResourceClaim, key, value string) error {
	about := framework.ObjectOf(claim)
	size := len(key) + len(value)
	marks := size
	for k, v := range claim.Annotations {
		size += len(k) + len(v)
		if strings.HasPrefix(k, markPrefix) {
			marks += len(k) + len(v)
		}
	}
	if marks > maxMarks {
		return framework.NotYet(about, "room for another annotation %s*: all of them can have %d bytes", markPrefix, maxMarks).
			Advise("retry the Binding after Prebind has removed unused ones")
	}
	if size > validation.TotalAnnotationSizeLimitB {
		return framework.Refuse(about, "no room for the annotation of this bind: all annotations together can have %d bytes", validation.TotalAnnotationSizeLimitB).
			Advise("remove annotations from the claim")
	}
	return nil
}

// reserve reserves the claim for the pod, on the condition that the claim still has the mark
// of this attempt: a write that arrives after the roll-back must not leave a reservation
// behind. The patch changes nothing else, so that many pods can reserve the claim at the
// same time. If the claim has changed and again is true, reserve returns the current claim.
func (p *Plugin) reserve(ctx context.Context, m framework.Mark, claim *resourcev1.ResourceClaim, again bool) (*resourcev1.ResourceClaim, error) {
	key := markKey(m.PodUID, m.Attempt)
	consumer := resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: m.Pod.Name, UID: m.PodUID}
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
	err := p.h.Status.Status().Patch(ctx, reserved, patch(types.JSONPatchType, steps), fieldOwner)
	switch {
	case err == nil:
		return reserved, nil
	case again && (apierrors.IsInvalid(err) || apierrors.IsConflict(err)):
		return p.live(ctx, claim.Namespace, claim.Name)
	default:
		return nil, failedWrite(claim, "reserving it for the pod", err)
	}
}

// failedWrite returns the error for a write that failed.
func failedWrite(claim *resourcev1.ResourceClaim, doing string, err error) error {
	about := framework.ObjectOf(claim)
	if apierrors.IsNotFound(err) {
		return framework.Refuse(about, "was deleted").Because(err).Advise("create it, or change the pod")
	}
	return framework.FromAPI(about, doing, err).Advise("check that Prebind has the permissions in config/webhook/plugins/resource-claims")
}

// patch encodes the content, which must always be encodable.
func patch(kind types.PatchType, content any) client.Patch {
	encoded, err := json.Marshal(content)
	if err != nil {
		encoded = []byte("{}")
	}
	return client.RawPatch(kind, encoded)
}
