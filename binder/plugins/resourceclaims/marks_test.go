// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package resourceclaims

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/prebind/prebind/test/gen"
)

func TestSplitKey(t *testing.T) {
	cases := map[string]struct {
		reason, key  string
		uid, attempt string
		ok           bool
	}{
		"Points":      {reason: "an attempt can contain dots", key: "resource-claims.prebind.dev/u-1.a-2.b", uid: "u-1", attempt: "a-2.b", ok: true},
		"OtherDomain": {reason: "the domain is different", key: "resource-claims.example.com/u.a"},
		"NoUID":       {reason: "the UID is missing", key: "resource-claims.prebind.dev/.a"},
		"NoAttempt":   {reason: "the attempt is missing", key: "resource-claims.prebind.dev/u."},
		"NoPoint":     {reason: "the dot is missing", key: "resource-claims.prebind.dev/note"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			uid, attempt, ok := splitKey(tc.key)
			assert.Equal(t, tc.ok, ok, tc.reason)
			if tc.ok {
				assert.Empty(t, validation.IsQualifiedName(tc.key), "the API server accepts the key")
				assert.Equal(t, tc.uid, string(uid), tc.reason)
				assert.Equal(t, tc.attempt, attempt, tc.reason)
			}
		})
	}
}

func TestDecodeMark(t *testing.T) {
	cases := map[string]struct {
		reason, value string
		want          mark
		ok            bool
	}{
		"Mark":    {reason: "encode writes this form", value: mark{Pod: "web", Node: "node-a"}.encode(), want: mark{Pod: "web", Node: "node-a"}, ok: true},
		"Earlier": {reason: "unknown fields are ignored", value: `{"pod":"web","node":"node-a","allocated":true}`, want: mark{Pod: "web", Node: "node-a"}, ok: true},
		"Path":    {reason: "the name is invalid", value: `{"pod":"a/b","node":"node-a"}`},
		"Long":    {reason: "the value is too long", value: `{"pod":"web","node":"node-a","note":"` + strings.Repeat("a", maxMarkValue) + `"}`},
		"NoPod":   {reason: "the pod is missing", value: `{"node":"node-a"}`},
		"NoJSON":  {reason: "the value is not JSON", value: "mine"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			m, ok := decodeMark(tc.value)
			assert.Equal(t, tc.ok, ok, tc.reason)
			if tc.ok {
				assert.Equal(t, tc.want, m, tc.reason)
			}
		})
	}
}

// managed returns an entry of managedFields as API server v1.36.3 writes it.
func managed(manager string, pods ...string) metav1.ManagedFieldsEntry {
	items := make([]string, 0, len(pods))
	for _, pod := range pods {
		items = append(items, `"k:{\"uid\":\"pod-`+pod+`\"}":{".":{},"f:name":{},"f:resource":{},"f:uid":{}}`)
	}
	return metav1.ManagedFieldsEntry{
		Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "resource.k8s.io/v1", Subresource: "status",
		FieldsV1: metav1.NewFieldsV1(`{"f:status":{"f:allocation":{".":{}},"f:reservedFor":{".":{},` + strings.Join(items, ",") + `}}}`),
	}
}

func TestReservedByOthers(t *testing.T) {
	cases := map[string]struct {
		reason  string
		entries []metav1.ManagedFieldsEntry
		want    bool
	}{
		"Ours":      {reason: "Prebind manages the reservation", entries: []metav1.ManagedFieldsEntry{managed("kube-scheduler", "db"), managed(string(fieldOwner), "web")}},
		"Scheduler": {reason: "kube-scheduler was faster", entries: []metav1.ManagedFieldsEntry{managed("kube-scheduler", "web"), managed(string(fieldOwner), "db")}, want: true},
		"Both":      {reason: "an apply by another client adds a manager", entries: []metav1.ManagedFieldsEntry{managed("kubectl", "web"), managed(string(fieldOwner), "web")}},
		"OtherPods": {reason: "the reservation is for another pod", entries: []metav1.ManagedFieldsEntry{managed("kube-scheduler", "db")}},
		"Broken":    {reason: "the entry is invalid", entries: []metav1.ManagedFieldsEntry{{Manager: "kube-scheduler", FieldsV1: metav1.NewFieldsV1("{")}}},
		"NoStatus":  {reason: "the entry is about annotations", entries: []metav1.ManagedFieldsEntry{{Manager: "kubectl", FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:annotations":{"f:x":{}}}}`)}}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			claim := theClaim("c", allocated("node-a", "gpu-0"), reservedTo("web"))
			claim.ManagedFields = tc.entries
			assert.Equal(t, tc.want, reservedByOthers(claim, "pod-web"), tc.reason)
		})
	}
}

func FuzzMarks(f *testing.F) {
	f.Add("resource-claims.prebind.dev/u.a", `{"pod":"web","node":"node-a"}`)
	f.Add("resource-claims.prebind.dev/u.a", `{"pod":"web","node":"node-a","allocated":true}`)
	f.Add("resource-claims.prebind.dev/.", `[]`)
	f.Add("x", "")
	f.Fuzz(func(t *testing.T, key, value string) {
		uid, attempt, ok := splitKey(key)
		if ok {
			assert.Equal(t, key, markKey(uid, attempt), "markKey is the reverse of splitKey")
		}
		m, readable := decodeMark(value)
		if readable {
			again, ok := decodeMark(m.encode())
			assert.True(t, ok)
			assert.Equal(t, m, again, "decodeMark is the reverse of encode")
		}
		claim := theClaim("c", meta1(gen.Annotation(key, value)))
		assert.Equal(t, ok && readable, len(unsettled(claim)) == 1, "a mark needs a valid key and a valid value")
		if markedByOthers(claim, uid, "here-1") {
			assert.NotEmpty(t, unsettled(claim), "every mark that keeps a reservation is swept")
		}
	})
}
