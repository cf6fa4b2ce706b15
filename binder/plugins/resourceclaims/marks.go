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
	// markPrefix begins the keys of marks.
	markPrefix = Name + "." + framework.Domain + "/"
	// maxMarkValue is the maximum length of the value of a mark in bytes. Two names of
	// 253 bytes fit.
	maxMarkValue = 1024
	// maxMarks is how many marks a claim may have before Prebind adds no more: two for
	// each possible reservation.
	maxMarks = 2 * resourcev1.ResourceClaimReservedForMaxSize
	// crowd is how many marks of one group the sweep settles one by one. A group is the
	// marks for one pod, or the marks without a reservation. Prebind itself does not write
	// more.
	crowd = 32
)

// mark is the value of an annotation of a claim that says which attempt reserves it
// for which pod. Its key is resource-claims.prebind.dev/<pod UID>.<attempt>, so that
// attempts mark a claim without a conflict.
//
// A tenant can write, change and delete marks. A mark therefore only fences the
// attempt's own writes. It never decides that a reservation or an allocation ends.
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
		return "{}" // Strings can be encoded.
	}
	return string(text)
}

// decodeMark reads a mark. Prebind ignores a value that is too long, or whose names
// are not valid: the API server would reject a request for such a pod.
func decodeMark(value string) (mark, bool) {
	var m mark
	if len(value) > maxMarkValue || json.Unmarshal([]byte(value), &m) != nil {
		return mark{}, false
	}
	return m, len(validation.IsDNS1123Subdomain(m.Pod)) == 0 && len(validation.IsDNS1123Subdomain(m.Node)) == 0
}

// markKeys returns the keys of the claim's annotations that have the form of a mark,
// in order.
func markKeys(claim *resourcev1.ResourceClaim) []string {
	var keys []string
	for key := range claim.Annotations {
		if _, _, ok := splitKey(key); ok {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// marksOf returns the attempts that have marked the claim, in order. The pod's name is
// the one in the mark.
func marksOf(claim *resourcev1.ResourceClaim) []framework.Mark {
	var marks []framework.Mark
	for _, key := range markKeys(claim) {
		if m, ok := decodeMark(claim.Annotations[key]); ok {
			uid, attempt, _ := splitKey(key)
			marks = append(marks, framework.Mark{
				Pod: types.NamespacedName{Namespace: claim.Namespace, Name: m.Pod}, PodUID: uid, Node: m.Node, Attempt: attempt,
			})
		}
	}
	return marks
}

// unsettled returns the marks of the claim that the sweep has to settle, in order.
// Where the claim is reserved for a mark's pod, the pod's name is the one in the
// reservation, which only a writer of the status can set. Of a crowd it returns the
// first marks: to settle one without a reservation removes them all.
func unsettled(claim *resourcev1.ResourceClaim) []framework.Mark {
	keys, users := markKeys(claim), reservations(claim)
	left := map[types.UID]int{}
	idle := 0
	for _, key := range keys {
		uid, _, _ := splitKey(key)
		if _, ok := users[uid]; ok {
			left[uid] = crowd
		} else {
			idle++
		}
	}
	left[""] = crowd
	if idle > crowd {
		left[""] = 1
	}
	var marks []framework.Mark
	for _, key := range keys {
		uid, attempt, _ := splitKey(key)
		name, ok := users[uid]
		group := uid
		if !ok {
			group = ""
		}
		if left[group] == 0 {
			continue
		}
		m, readable := decodeMark(claim.Annotations[key])
		if !readable {
			continue
		}
		if !ok {
			name = m.Pod
		}
		left[group]--
		marks = append(marks, framework.Mark{Pod: types.NamespacedName{Namespace: claim.Namespace, Name: name}, PodUID: uid, Node: m.Node, Attempt: attempt})
	}
	return marks
}

// markedByOthers says whether another attempt at the same pod's bind has marked
// the claim.
func markedByOthers(claim *resourcev1.ResourceClaim, pod types.UID, attempt string) bool {
	for key, value := range claim.Annotations {
		uid, other, ok := splitKey(key)
		if !ok || uid != pod || other == attempt {
			continue
		}
		if _, ok := decodeMark(value); ok {
			return true
		}
	}
	return false
}

// markedByAttempt says whether the claim has a mark of the attempt, for whichever pod.
func markedByAttempt(claim *resourcev1.ResourceClaim, attempt string) bool {
	return slices.ContainsFunc(markKeys(claim), func(key string) bool {
		_, of, _ := splitKey(key)
		return of == attempt
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

// isGone says that the pod is not bound and cannot be bound any more.
func isGone(at framework.Whereabouts) bool { return at == framework.Gone || at == framework.Replaced }

// isBound says that the pod is bound, to whichever node. It uses the claim.
func isBound(at framework.Whereabouts) bool {
	return at == framework.BoundHere || at == framework.BoundElsewhere
}

// pointless returns the keys of the marks to remove together with the mark of the pod's
// attempt, which comes first. at is where the pod is that the claim is reserved for, or
// empty if the claim is not reserved for the pod of the mark. Marks for a pod that is
// bound or gone protect nothing. Neither does a crowd of marks without a reservation: an
// attempt that is between its mark and its reservation marks the claim again.
func pointless(claim *resourcev1.ResourceClaim, pod types.UID, attempt string, at framework.Whereabouts) []string {
	own := markKey(pod, attempt)
	keys := []string{own}
	var idle []string
	users := reservations(claim)
	for _, key := range markKeys(claim) {
		uid, _, _ := splitKey(key)
		_, used := users[uid]
		switch {
		case key == own:
		case uid == pod && (isBound(at) || isGone(at)):
			keys = append(keys, key)
		case !used:
			idle = append(idle, key)
		}
	}
	if at == "" && len(idle) >= crowd {
		keys = append(keys, idle...)
	}
	return keys
}

// reservedByOthers says whether managedFields name another manager of the pod's
// reservation. Prebind marks a claim a moment before it reserves it, and a scheduler may
// reserve it in between.
//
// A client that updates the claim can rewrite managedFields. They are therefore only a
// reason to keep a reservation, never one to remove it.
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

// unique removes duplicates: a pod can have several claims.
func unique(marks []framework.Mark) []framework.Mark {
	seen := map[framework.Mark]bool{}
	return slices.DeleteFunc(marks, func(m framework.Mark) bool {
		had := seen[m]
		seen[m] = true
		return had
	})
}
