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
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/api"
)

// fieldOwner is the name under which the API server notes what this plugin wrote.
const fieldOwner = client.FieldOwner("prebind-" + Name)

// mark is the value of an annotation of a claim that says which attempt reserves it
// for which pod. Its key is <plugin>.<domain>/<pod UID>.<attempt>, so that attempts
// mark a claim without a conflict.
type mark struct {
	Pod  string `json:"pod"`
	Node string `json:"node"`
	// Allocated says that the attempt allocates the claim as well.
	Allocated bool `json:"allocated,omitempty"`
}

func markPrefix(domain string) string { return Name + "." + domain + "/" }

func markKey(domain string, pod types.UID, attempt string) string {
	return markPrefix(domain) + string(pod) + "." + attempt
}

// splitKey returns the parts of a mark's key; the UID of a pod has no point.
func splitKey(domain, key string) (pod types.UID, attempt string, ok bool) {
	rest, ok := strings.CutPrefix(key, markPrefix(domain))
	if !ok {
		return "", "", false
	}
	uid, attempt, ok := strings.Cut(rest, ".")
	return types.UID(uid), attempt, ok && uid != "" && attempt != ""
}

func (m mark) encode() string {
	text, err := json.Marshal(m)
	if err != nil {
		return "{}" // Strings and a bool can be encoded.
	}
	return string(text)
}

// decodeMark reads a mark. What somebody else wrote there is none.
func decodeMark(value string) (mark, bool) {
	var m mark
	err := json.Unmarshal([]byte(value), &m)
	return m, err == nil && m.Pod != "" && m.Node != ""
}

// marksOf are the attempts that have marked the claim, in order.
func marksOf(claim *resourcev1.ResourceClaim, domain string) []api.Mark {
	var marks []api.Mark
	for _, key := range slices.Sorted(maps.Keys(claim.Annotations)) {
		uid, attempt, ok := splitKey(domain, key)
		if !ok {
			continue
		}
		if m, ok := decodeMark(claim.Annotations[key]); ok {
			marks = append(marks, api.Mark{
				Pod: types.NamespacedName{Namespace: claim.Namespace, Name: m.Pod}, PodUID: uid, Node: m.Node, Attempt: attempt,
			})
		}
	}
	return marks
}

// markedByOthers says whether another attempt at the same pod's bind has marked
// the claim.
func markedByOthers(claim *resourcev1.ResourceClaim, domain string, pod types.UID, attempt string) bool {
	return slices.ContainsFunc(marksOf(claim, domain), func(m api.Mark) bool { return m.PodUID == pod && m.Attempt != attempt })
}

// reservedByOthers says whether the API server has noted of the pod's reservation
// that somebody else made it. A mark is put on a claim a moment before the
// reservation, and a scheduler may reserve it in between.
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

// unique drops marks that are there already: a pod may have several claims.
func unique(marks []api.Mark) []api.Mark {
	seen := map[api.Mark]bool{}
	return slices.DeleteFunc(marks, func(m api.Mark) bool {
		had := seen[m]
		seen[m] = true
		return had
	})
}
