// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package resourceclaims

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/config/v1alpha1"
)

// fieldOwner is the field manager of this plugin's writes.
const fieldOwner = client.FieldOwner("prebind-" + Name)

const (
	// markPrefix is the prefix of the keys of marks.
	markPrefix = Name + "." + v1alpha1.Domain + "/"
	// maxMarkValue is the maximum length of the value of a mark in bytes. Two names of
	// 253 bytes fit.
	maxMarkValue = 1024
	// maxMarks is the maximum size of all marks on a claim up to which PreBind adds marks, in bytes. One for each possible reservation
	// fits if they have 192. The cache holds more, because PreBind does not see marks that other replicas add at the same time.
	maxMarks = 48 << 10
	// maxListed is the maximum number of marks of a claim that one sweep decodes and settles. Tenants can write more. They can also delete marks,
	// so it makes no difference that invalid ones can hide others of the claim.
	maxListed = 32
)

// mark is the value of an annotation of a claim. It names the pod for which the attempt reserves
// the claim. The key resource-claims.prebind.dev/<pod UID>.<attempt> is unique, so that
// attempts do not conflict.
//
// Tenants can write, change and delete marks. A mark therefore only fences writes of its
// attempt. It never decides that a reservation ends.
type mark struct {
	Pod  string `json:"pod"`
	Node string `json:"node"`
}

func markKey(pod types.UID, attempt string) string { return markPrefix + string(pod) + "." + attempt }

// splitKey returns the parts of a mark's key. The UID of a pod contains no dot.
func splitKey(key string) (pod types.UID, attempt string, ok bool) {
	rest, ok := strings.CutPrefix(key, markPrefix)
	if !ok {
		return "", "", false
	}
	uid, attempt, ok := strings.Cut(rest, ".")
	return types.UID(uid), attempt, ok && uid != "" && attempt != ""
}

func (m mark) encode() string {
	text, err := json.Marshal(m)
	if err != nil {
		return "{}" // Cannot happen: strings can always be encoded.
	}
	return string(text)
}

// decodeMark decodes a mark. It rejects long values and invalid names, because the API
// server rejects requests for such pods.
func decodeMark(value string) (mark, bool) {
	var m mark
	if len(value) > maxMarkValue || json.Unmarshal([]byte(value), &m) != nil {
		return mark{}, false
	}
	return m, len(validation.IsDNS1123Subdomain(m.Pod)) == 0 && len(validation.IsDNS1123Subdomain(m.Node)) == 0
}

// unsettled returns the valid marks of the claim that the sweep has to settle, those of pods with a reservation first. If the
// claim is reserved for the pod of a mark, the pod's name is the one in the reservation,
// which only a writer of the status can set.
func unsettled(claim *resourcev1.ResourceClaim) []framework.Mark {
	if len(claim.Annotations) == 0 { // Most claims have no marks.
		return nil
	}
	users := reservations(claim)
	keys := slices.Sorted(maps.Keys(claim.Annotations))
	var marks []framework.Mark
	left := maxListed // Invalid marks count, too.
	for _, first := range []bool{true, false} {
		for _, key := range keys {
			pod, attempt, ok := splitKey(key)
			user, reserved := users[pod]
			if !ok || reserved != first || left == 0 {
				continue
			}
			left--
			m, ok := decodeMark(claim.Annotations[key])
			if !ok {
				continue
			}
			if reserved {
				m.Pod = user
			}
			marks = append(marks, framework.Mark{
				Pod: types.NamespacedName{Namespace: claim.Namespace, Name: m.Pod}, PodUID: pod, Node: m.Node, Attempt: attempt,
			})
		}
	}
	return marks
}

// markedByOthers reports whether another attempt at the bind of the same pod has marked the
// claim. It ignores marks that cannot be decoded, because the sweep never settles them.
func markedByOthers(claim *resourcev1.ResourceClaim, pod types.UID, attempt string) bool {
	for key, value := range claim.Annotations {
		if uid, other, ok := splitKey(key); ok && uid == pod && other != attempt {
			if _, ok := decodeMark(value); ok {
				return true
			}
		}
	}
	return false
}

// reservations returns the names of the pods that the claim is reserved for, by UID.
// Reservations for other kinds of objects, such as PodGroups, are not Prebind's.
func reservations(claim *resourcev1.ResourceClaim) map[types.UID]string {
	users := make(map[types.UID]string, len(claim.Status.ReservedFor))
	for _, r := range claim.Status.ReservedFor {
		if r.Resource == "pods" && r.APIGroup == "" {
			users[r.UID] = r.Name
		}
	}
	return users
}

// reservedByOthers reports whether managedFields name another manager of the reservation of
// the pod. A scheduler can reserve the claim after Prebind has marked it.
//
// Clients can rewrite managedFields. They are therefore only a reason to keep a reservation,
// never to remove one.
func reservedByOthers(claim *resourcev1.ResourceClaim, pod types.UID) bool {
	others := false
	for _, entry := range claim.ManagedFields {
		var fields struct {
			Status struct {
				ReservedFor map[string]json.RawMessage `json:"f:reservedFor"`
			} `json:"f:status"`
		}
		if entry.FieldsV1 == nil || json.Unmarshal(entry.FieldsV1.GetRawBytes(), &fields) != nil {
			continue
		}
		if _, has := fields.Status.ReservedFor[`k:{"uid":"`+string(pod)+`"}`]; !has {
			continue
		}
		if entry.Manager == string(fieldOwner) {
			return false
		}
		others = true
	}
	return others
}
