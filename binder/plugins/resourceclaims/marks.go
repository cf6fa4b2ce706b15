// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package resourceclaims

import (
	"encoding/json"
	"slices"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
)

// fieldOwner is the field manager of this plugin's writes.
const fieldOwner = client.FieldOwner("prebind-" + Name)

const (
	// markPrefix is the prefix of the keys of marks.
	markPrefix = Name + "." + framework.Domain + "/"
	// maxMarkValue is the maximum length of the value of a mark in bytes. Two names of
	// 253 bytes fit.
	maxMarkValue = 1024
	// maxMarks is the maximum number of marks on a claim: two for each possible reservation.
	maxMarks = 2 * resourcev1.ResourceClaimReservedForMaxSize
	// crowd is the number of marks of one group that the sweep settles individually. A group
	// contains the marks of one pod, or all marks without a reservation. Prebind itself
	// writes fewer.
	crowd = 32
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

// marking is an annotation of a claim that has the key of a mark. Its value can be
// anything.
type marking struct {
	key     string
	pod     types.UID
	attempt string
	value   string
}

// markings returns the markings of the claim, ordered by key.
func markings(claim *resourcev1.ResourceClaim) []marking {
	var all []marking
	for key, value := range claim.Annotations {
		if pod, attempt, ok := splitKey(key); ok {
			all = append(all, marking{key: key, pod: pod, attempt: attempt, value: value})
		}
	}
	slices.SortFunc(all, func(a, b marking) int { return strings.Compare(a.key, b.key) })
	return all
}

// unsettled returns the marks of the claim that the sweep has to settle, in order. If the
// claim is reserved for the pod of a mark, the pod's name is the one in the reservation,
// which only a writer of the status can set. Of a crowd it returns the first marks, and of
// a crowd without reservations the first one: settling that one removes all of them.
func unsettled(claim *resourcev1.ResourceClaim) []framework.Mark {
	all, users := markings(claim), reservations(claim)
	idle := 0
	for _, m := range all {
		if _, reserved := users[m.pod]; !reserved {
			idle++
		}
	}
	var marks []framework.Mark
	listed := map[types.UID]int{}
	for _, m := range all {
		group, most := m.pod, crowd
		name, reserved := users[m.pod]
		if !reserved {
			group = ""
			if idle > crowd {
				most = 1
			}
		}
		if listed[group] == most {
			continue
		}
		content, ok := decodeMark(m.value)
		if !ok {
			continue
		}
		if !reserved {
			name = content.Pod
		}
		listed[group]++
		marks = append(marks, framework.Mark{
			Pod: types.NamespacedName{Namespace: claim.Namespace, Name: name}, PodUID: m.pod, Node: content.Node, Attempt: m.attempt,
		})
	}
	return marks
}

// markedByOthers reports whether another attempt at the bind of the same pod has marked the
// claim. It ignores marks that cannot be decoded, because the sweep never settles them.
func markedByOthers(claim *resourcev1.ResourceClaim, pod types.UID, attempt string) bool {
	return slices.ContainsFunc(markings(claim), func(m marking) bool {
		_, ok := decodeMark(m.value)
		return ok && m.pod == pod && m.attempt != attempt
	})
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

func reservedFor(claim *resourcev1.ResourceClaim, pod types.UID) bool {
	_, ok := reservations(claim)[pod]
	return ok
}

// isGone reports whether the pod is not bound and can never be bound.
func isGone(at framework.Whereabouts) bool {
	return at == framework.Gone || at == framework.Replaced
}

// isBound reports whether the pod is bound to any node and therefore uses the claim.
func isBound(at framework.Whereabouts) bool {
	return at == framework.BoundHere || at == framework.BoundElsewhere
}

// pointless returns the keys of the marks to remove together with the mark of the pod's
// attempt, which comes first. at is the whereabouts of the pod, or empty if the claim is
// not reserved for the pod. Marks for a pod that is bound or gone protect nothing. A crowd
// of marks without a reservation protects nothing either: an attempt that has not yet
// reserved the claim marks it again.
func pointless(claim *resourcev1.ResourceClaim, pod types.UID, attempt string, at framework.Whereabouts) []string {
	keys := []string{markKey(pod, attempt)}
	var idle []string
	users := reservations(claim)
	for _, m := range markings(claim) {
		_, reserved := users[m.pod]
		switch {
		case m.key == keys[0]:
		case m.pod == pod && (isBound(at) || isGone(at)):
			keys = append(keys, m.key)
		case !reserved:
			idle = append(idle, m.key)
		}
	}
	if at == "" && len(idle) >= crowd {
		keys = append(keys, idle...)
	}
	return keys
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
