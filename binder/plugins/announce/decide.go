// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/podstate"
)

// managerPrefix begins the field manager of every write. The ID of the attempt follows. So
// managedFields of the pod name the attempts that own the field, and attempts on several replicas
// own it independently of each other: the API server removes the field with its last owner.
const managerPrefix = "prebind-" + Name + "-"

// maxMarks is the maximum number of marks on a pod. Each crash of a replica during one bind leaves
// one.
const maxMarks = 10

func managerOf(attempt string) string { return managerPrefix + attempt }

// nominatedNode is the field that the plugin sets, and onlyField contains nothing else.
var (
	nominatedNode = fieldpath.MakePathOrDie("status", "nominatedNodeName")
	onlyField     = fieldpath.NewSet(nominatedNode)
)

// fieldsOf returns the fields of the entry. An invalid entry has none.
func fieldsOf(entry *metav1.ManagedFieldsEntry) *fieldpath.Set {
	set := fieldpath.NewSet()
	if err := set.FromJSON(entry.FieldsV1.GetRawReader()); err != nil {
		return fieldpath.NewSet()
	}
	return set
}

// isOurs returns whether the entry is one that a write of this plugin leaves. Users can write
// managedFields through the pod, so a manager with the prefix alone proves nothing: an apply for an
// entry of another operation or subresource has no effect, and one for an entry with more fields
// removes these fields.
func isOurs(entry *metav1.ManagedFieldsEntry) bool {
	return strings.HasPrefix(entry.Manager, managerPrefix) && entry.Operation == metav1.ManagedFieldsOperationApply &&
		entry.Subresource == "status" && fieldsOf(entry).Equals(onlyField)
}

// ownersOf returns the attempts that own nominatedNodeName, and whether another client owns it.
func ownersOf(pod *corev1.Pod) (attempts []string, foreign bool) {
	for i := range pod.ManagedFields {
		entry := &pod.ManagedFields[i]
		if isOurs(entry) {
			attempts = append(attempts, strings.TrimPrefix(entry.Manager, managerPrefix))
		} else if fieldsOf(entry).Has(nominatedNode) {
			foreign = true
		}
	}
	return attempts, foreign
}

// isForged returns whether an entry of the attempt's manager is not one of this plugin. An apply would
// remove the other fields of the entry.
func isForged(pod *corev1.Pod, attempt string) bool {
	return slices.ContainsFunc(pod.ManagedFields, func(entry metav1.ManagedFieldsEntry) bool {
		return entry.Manager == managerOf(attempt) && !isOurs(&entry)
	})
}

// mayAnnounce returns whether an attempt to bind the pod with the UID to the node may set the
// field: if it is empty, or if only earlier attempts of Prebind have set it, whose replicas ended.
// The pod is the live one, or nil.
func mayAnnounce(pod *corev1.Pod, uid types.UID, node string) bool {
	if podstate.Of(pod, uid, node) != podstate.Pending {
		return false
	}
	if pod.Status.NominatedNodeName == "" {
		return true
	}
	attempts, foreign := ownersOf(pod)
	return len(attempts) > 0 && !foreign
}

// owns returns whether the field is set, and the attempt is one of its owners. last is set if it
// is the only one. The pod is the live one, or nil.
func owns(pod *corev1.Pod, uid types.UID, attempt string) (owns, last bool) {
	if pod == nil || pod.UID != uid || pod.Status.NominatedNodeName == "" {
		return false, false
	}
	attempts, foreign := ownersOf(pod)
	owns = slices.Contains(attempts, attempt) && !isForged(pod, attempt)
	return owns, owns && len(attempts) == 1 && !foreign
}

// marksOf returns the marks of a pod. A tenant who may patch a pod can change its managedFields, and
// so the marks of this pod only.
func marksOf(pod *corev1.Pod) []framework.Mark {
	var marks []framework.Mark
	attempts, _ := ownersOf(pod)
	for _, attempt := range attempts[:min(len(attempts), maxMarks)] {
		marks = append(marks, framework.Mark{
			Pod: types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}, PodUID: pod.UID,
			Node: pod.Status.NominatedNodeName, Attempt: attempt,
		})
	}
	return marks
}
