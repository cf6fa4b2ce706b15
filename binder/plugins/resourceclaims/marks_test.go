// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package resourceclaims

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/gen"
)

func TestUnsettled(t *testing.T) {
	// An attempt can contain dots.
	const key = "resource-claims.prebind.dev/u-1.a-2.b"
	require.Empty(t, validation.IsQualifiedName(key), "the API server accepts the key")
	web := mark{Pod: "web", Node: "node-a"}.encode()
	cases := map[string]struct {
		reason, key, value string
		ok                 bool
	}{
		"Mark":        {reason: "encode writes this form", key: key, value: web, ok: true},
		"Earlier":     {reason: "unknown fields are ignored", key: key, value: `{"pod":"web","node":"node-a","allocated":true}`, ok: true},
		"OtherDomain": {reason: "the domain is different", key: "resource-claims.example.com/u.a", value: web},
		"NoUID":       {reason: "the UID is missing", key: "resource-claims.prebind.dev/.a", value: web},
		"NoAttempt":   {reason: "the attempt is missing", key: "resource-claims.prebind.dev/u.", value: web},
		"NoPoint":     {reason: "the dot is missing", key: "resource-claims.prebind.dev/note", value: web},
		"Path":        {reason: "the name is invalid", key: key, value: `{"pod":"a/b","node":"node-a"}`},
		"Long":        {reason: "the value is too long", key: key, value: `{"pod":"web","node":"node-a","note":"` + strings.Repeat("a", maxMarkValue) + `"}`},
		"NoPod":       {reason: "the pod is missing", key: key, value: `{"node":"node-a"}`},
		"NoJSON":      {reason: "the value is not JSON", key: key, value: "mine"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var want []framework.Mark
			if tc.ok {
				want = []framework.Mark{{Pod: types.NamespacedName{Namespace: "default", Name: "web"}, PodUID: "u-1", Node: "node-a", Attempt: "a-2.b"}}
			}
			assert.Equal(t, want, unsettled(theClaim("c", meta1(gen.Annotation(tc.key, tc.value)))), tc.reason)
		})
	}
}

// Tenants control the number of marks on a claim, and every pass checks them.
func TestMarkedByOthers_DecodesOnlyMarksOfThePod(t *testing.T) {
	web := mark{Pod: "web", Node: "node-a"}.encode()
	claim := theClaim("c", meta1(gen.Annotation(markKey("pod-db", "here-1"), web)), meta1(gen.Annotation(markKey("pod-web", "here-1"), web)))
	found := false
	assert.Zero(t, testing.AllocsPerRun(100, func() { found = markedByOthers(claim, "pod-web", "here-1") }))
	assert.False(t, found, "the marks are of another pod and of this attempt")
}

// Tenants control the number of marks on a claim, and each sweep of each replica reads them.
func TestUnsettled_DecodesFewMarks(t *testing.T) {
	for name, pod := range map[string]string{"Valid": "no-such-pod", "Invalid": "a/b"} {
		t.Run(name, func(t *testing.T) {
			allocations := func(marks int) float64 {
				claim := theClaim("c", allocated("node-a", "gpu-0"), reservedTo("web"), forged("pod-web", "here-1", "web", "node-a"))
				for i := range marks {
					forged(types.UID(fmt.Sprintf("a-%d", i)), "nosuchid-1", pod, "x")(claim)
				}
				require.NotEmpty(t, unsettled(claim))
				assert.Equal(t, types.UID("pod-web"), unsettled(claim)[0].PodUID, "the claim is reserved for the pod")
				return testing.AllocsPerRun(10, func() { unsettled(claim) })
			}
			assert.Less(t, allocations(1000), 1.5*allocations(maxListed))
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
