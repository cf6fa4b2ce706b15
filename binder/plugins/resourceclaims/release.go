// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package resourceclaims

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/podstate"
)

// marked returns the names of the claims in the cache that have the mark of the attempt.
func (p *Plugin) marked(ctx context.Context, m framework.Mark) ([]string, error) {
	var names []string
	var list resourcev1.ResourceClaimList
	err := p.h.Cached.List(ctx, &list, client.InNamespace(m.Pod.Namespace), client.UnsafeDisableDeepCopy)
	for i := range list.Items {
		if markOn(m, &list.Items[i]) != "" {
			names = append(names, list.Items[i].Name)
		}
	}
	return names, err
}

// releaseConflicts is the maximum number of conflicts in one roll-back of a claim. A
// sweep retries it later. The owner of the claim can change it at any rate.
const releaseConflicts = 10

// release removes the reservation and the mark of the attempt from the claim.
func (p *Plugin) release(ctx context.Context, m framework.Mark, name string) error {
	err := retry.RetryOnConflict(wait.Backoff{Steps: releaseConflicts + 1}, func() error {
		for {
			over, err := p.releaseStep(ctx, m, name)
			if over || err != nil {
				return err
			}
		}
	})
	return client.IgnoreNotFound(err)
}

// releaseStep sends at most one write. It reports whether nothing is left to do, and fails with a
// conflict if the claim has changed since it was read.
//
// The mark only selects the attempt. The reservation in the claim and the pod that it names
// decide. An attempt removes its mark after it has bound the pod, so releaseStep first reads
// the claim and then the pod. It removes only the mark if the pod is bound, because the pod
// uses the claim, and if another attempt at the bind has marked the claim, because that
// attempt relies on the reservation.
func (p *Plugin) releaseStep(ctx context.Context, m framework.Mark, name string) (over bool, err error) {
	claim := &resourcev1.ResourceClaim{}
	if err := p.h.Live.Get(ctx, client.ObjectKey{Namespace: m.Pod.Namespace, Name: name}, claim); err != nil {
		return false, err
	}
	if markOn(m, claim) == "" {
		return true, nil
	}
	at := podstate.State("")
	if user, ok := reservations(claim)[m.PodUID]; ok {
		if user != m.Pod.Name {
			// The caller has decided about another pod. The next list of marks names the
			// right one.
			return true, nil
		}
		pod, err := framework.Get(ctx, p.h.Live, &corev1.Pod{}, m.Pod.Namespace, m.Pod.Name)
		if err != nil {
			return false, err
		}
		at = podstate.Of(pod, m.PodUID, m.Node)
	}
	// Of a pod that is gone, kube-controller-manager removes the reservation: it deallocates the claim only if it has removed the last one.
	unused := at == podstate.Pending && !markedByOthers(claim, m.PodUID, m.Attempt)
	// Another manager removes the reservation or uses it.
	if unused && !reservedByOthers(claim, m.PodUID) {
		return false, p.unreserve(ctx, m, claim)
	}
	err = p.unmark(ctx, m, name, claim)
	return err == nil, err
}

// unreserve removes the reservation for the pod, on the condition that the claim has not
// changed: an attempt that has marked it since then may rely on the reservation.
func (p *Plugin) unreserve(ctx context.Context, m framework.Mark, claim *resourcev1.ResourceClaim) error {
	return p.h.Status.Status().Patch(ctx, claim.DeepCopy(), patch(types.StrategicMergePatchType, map[string]any{
		"metadata": map[string]any{"uid": claim.UID, "resourceVersion": claim.ResourceVersion},
		"status":   map[string]any{"reservedFor": []any{map[string]any{"$patch": "delete", "uid": m.PodUID}}},
	}), fieldOwner)
}

// unmark removes the mark of the attempt. With a claim, it does so on the condition that the claim has not changed: the
// marks of other attempts decide about the reservation.
func (p *Plugin) unmark(ctx context.Context, m framework.Mark, name string, unchanged *resourcev1.ResourceClaim) error {
	metadata := map[string]any{"annotations": map[string]any{markKey(m.PodUID, m.Attempt): nil}}
	if unchanged != nil {
		metadata["uid"], metadata["resourceVersion"] = unchanged.UID, unchanged.ResourceVersion
	}
	claim := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: m.Pod.Namespace, Name: name}}
	return p.h.Writer.Patch(ctx, claim, patch(types.MergePatchType, map[string]any{"metadata": metadata}), fieldOwner)
}
