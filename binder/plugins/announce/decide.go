// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"encoding/json"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/prebind/prebind/binder/framework"
)

// managerPrefix begins the field manager of every write. The ID of the attempt follows. So
// managedFields of the pod name the attempts that own the field, and attempts on several replicas
// own it independently of each other: the API server removes the field with its last owner.
const managerPrefix = "prebind-" + Name + "-"

// maxMarks is the maximum number of marks on a pod. Each crash of a replica during one bind leaves
// one.
const maxMarks = 10

func managerOf(attempt string) string { return managerPrefix + attempt }

// attemptOf returns the attempt of a field manager, and whether it is one of this plugin.
func attemptOf(manager string) (attempt string, ok bool) {
	return strings.CutPrefix(manager, managerPrefix)
}

// ownersOf returns the field managers of nominatedNodeName.
func ownersOf(pod *corev1.Pod) []string {
	var owners []string
	for _, entry := range pod.ManagedFields {
		var owned struct {
			Status struct {
				NominatedNodeName *struct{} `json:"f:nominatedNodeName"`
			} `json:"f:status"`
		}
		if entry.FieldsV1 == nil || json.Unmarshal(entry.FieldsV1.GetRawBytes(), &owned) != nil {
			continue
		}
		if owned.Status.NominatedNodeName != nil {
			owners = append(owners, entry.Manager)
		}
	}
	return owners
}

// mayAnnounce returns whether an attempt to bind the pod with the UID to the node may set the
// field: if it is empty, or if only earlier attempts of Prebind have set it, whose replicas ended.
// The pod is the live one, or nil.
func mayAnnounce(pod *corev1.Pod, uid types.UID, node string) bool {
	if framework.WhereaboutsOf(pod, uid, node) != framework.Pending {
		return false
	}
	if pod.Status.NominatedNodeName == "" {
		return true
	}
	owners := ownersOf(pod)
	for _, owner := range owners {
		if _, ours := attemptOf(owner); !ours {
			return false
		}
	}
	return len(owners) > 0
}

// owns returns whether the field is set, and the attempt is one of its owners. last is set if it
// is the only one. The pod is the live one, or nil.
func owns(pod *corev1.Pod, uid types.UID, attempt string) (owns, last bool) {
	if pod == nil || pod.UID != uid || pod.Status.NominatedNodeName == "" {
		return false, false
	}
	owners := ownersOf(pod)
	for _, owner := range owners {
		if owner == managerOf(attempt) {
			return true, len(owners) == 1
		}
	}
	return false, false
}

// marksOf returns the marks of a pod. A tenant who may patch a pod can change its managedFields, and
// so the marks of this pod only.
func marksOf(pod *corev1.Pod) []framework.Mark {
	var marks []framework.Mark
	for _, owner := range ownersOf(pod) {
		if attempt, ours := attemptOf(owner); ours && len(marks) < maxMarks {
			marks = append(marks, framework.Mark{
				Pod: types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}, PodUID: pod.UID,
				Node: pod.Status.NominatedNodeName, Attempt: attempt,
			})
		}
	}
	return marks
}
