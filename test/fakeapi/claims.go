// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package fakeapi

import (
	"encoding/json"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// checkClaim does what the API server does when a ResourceClaim is written: it stores the status or the rest, validates the status, and records the managers of reservations.
func checkClaim(before, after client.Object, status bool, manager string) error {
	was, ok := before.(*resourcev1.ResourceClaim)
	if !ok {
		return nil
	}
	now, ok := after.(*resourcev1.ResourceClaim)
	if !ok {
		return Invalid("a %T is not a ResourceClaim", after)
	}
	now.ManagedFields = slices.Clone(was.ManagedFields)
	if !status {
		now.Status = *was.Status.DeepCopy()
		if was.DeletionTimestamp != nil && len(now.Finalizers) > len(was.Finalizers) {
			return Invalid("no new finalizers can be added if the object is being deleted")
		}
		return nil
	}
	now.ObjectMeta, now.Spec = *was.ObjectMeta.DeepCopy(), *was.Spec.DeepCopy()
	if err := validStatus(was, now); err != nil {
		return err
	}
	noteReservations(was, now, manager)
	return nil
}

// validStatus is what the API server asks of a status.
func validStatus(was, now *resourcev1.ResourceClaim) error {
	reserved := now.Status.ReservedFor
	uids := sets.New[types.UID]()
	for _, r := range reserved {
		if uids.Has(r.UID) {
			return Invalid("status.reservedFor: Duplicate value: %s", r.UID)
		}
		uids.Insert(r.UID)
	}
	switch {
	case len(reserved) > resourcev1.ResourceClaimReservedForMaxSize:
		return Invalid("status.reservedFor: Too many")
	case len(reserved) > 0 && now.Status.Allocation == nil:
		return Invalid("status.reservedFor: Forbidden: may not be specified when `allocated` is not set")
	case was.DeletionTimestamp != nil && len(sets.New(reserved...).Difference(sets.New(was.Status.ReservedFor...))) > 0:
		return Invalid("new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set")
	case was.Status.Allocation != nil && now.Status.Allocation != nil && !equality.Semantic.DeepEqual(was.Status.Allocation, now.Status.Allocation):
		return Invalid("status.allocation: field is immutable")
	}
	return nil
}

// noteReservations keeps the managed fields of the reservations of a ResourceClaim: the
// manager is who made the new ones.
func noteReservations(before, after client.Object, manager string) {
	was, ok := before.(*resourcev1.ResourceClaim)
	if !ok {
		return
	}
	now, ok := after.(*resourcev1.ResourceClaim)
	if !ok {
		return
	}
	owners := map[types.UID]string{}
	for _, r := range was.Status.ReservedFor {
		for _, entry := range was.ManagedFields {
			var fields map[string]map[string]map[string]any
			if json.Unmarshal(entry.FieldsV1.GetRawBytes(), &fields) == nil && fields["f:status"]["f:reservedFor"][fieldKey(r.UID)] != nil {
				owners[r.UID] = entry.Manager
			}
		}
	}
	byManager := map[string]map[string]any{}
	for _, r := range now.Status.ReservedFor {
		owner, had := owners[r.UID]
		if !had {
			owner = manager
		}
		if byManager[owner] == nil {
			byManager[owner] = map[string]any{}
		}
		byManager[owner][fieldKey(r.UID)] = map[string]any{".": map[string]any{}, "f:uid": map[string]any{}}
	}
	now.ManagedFields = nil
	for _, owner := range sets.List(sets.KeySet(byManager)) {
		raw, err := json.Marshal(map[string]any{"f:status": map[string]any{"f:reservedFor": byManager[owner]}})
		if err == nil {
			now.ManagedFields = append(now.ManagedFields, metav1.ManagedFieldsEntry{
				Manager: owner, Operation: metav1.ManagedFieldsOperationUpdate, Subresource: "status", FieldsV1: metav1.NewFieldsV1(string(raw)),
			})
		}
	}
}

func fieldKey(uid types.UID) string { return `k:{"uid":"` + string(uid) + `"}` }

// nominatedField is in the managed fields of each owner of nominatedNodeName.
const nominatedField = `{"f:status":{"f:nominatedNodeName":{}}}`

// noteNominated keeps the managers of the field nominatedNodeName of a pod when its status is written, as the API server does for all fields. An
// apply without the field gives it up, and the last owner removes it.
func noteNominated(call Call, before, after client.Object, manager string) {
	was, ok := before.(*corev1.Pod)
	now, also := after.(*corev1.Pod)
	if !ok || !also || !strings.HasSuffix(call.Verb, " status") {
		return
	}
	isOwner := func(e metav1.ManagedFieldsEntry) bool {
		return e.Subresource == "status" && strings.Contains(string(e.FieldsV1.GetRawBytes()), "f:nominatedNodeName")
	}
	changed, applies := was.Status.NominatedNodeName != now.Status.NominatedNodeName, call.Verb == "apply status"
	now.ManagedFields = slices.DeleteFunc(slices.Clone(was.ManagedFields), func(e metav1.ManagedFieldsEntry) bool {
		return isOwner(e) && (changed || applies && e.Manager == manager)
	})
	sets := strings.Contains(call.Patch, "nominatedNodeName")
	if applies && !sets && slices.ContainsFunc(was.ManagedFields, isOwner) && !slices.ContainsFunc(now.ManagedFields, isOwner) {
		now.Status.NominatedNodeName = ""
	}
	if now.Status.NominatedNodeName == "" || !changed && (!applies || !sets) {
		return
	}
	owner := metav1.ManagedFieldsEntry{Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, Subresource: "status", FieldsV1: metav1.NewFieldsV1(nominatedField)}
	if applies {
		owner.Operation = metav1.ManagedFieldsOperationApply
	}
	now.ManagedFields = append(now.ManagedFields, owner)
}
