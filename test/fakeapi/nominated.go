// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package fakeapi

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

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
