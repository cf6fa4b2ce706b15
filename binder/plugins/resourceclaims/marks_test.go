// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package resourceclaims

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/gen"
)

func TestMarkKey(t *testing.T) {
	key := markKey("0e615ce3-b4cb-445b-a000-796bbbf57f7c", "abcdefgh-0123456789")
	assert.Empty(t, validation.IsQualifiedName(key), "it has to be a key that the API server takes, with a UID and an attempt as they are")
	uid, attempt, ok := splitKey(key)
	assert.True(t, ok)
	assert.Equal(t, types.UID("0e615ce3-b4cb-445b-a000-796bbbf57f7c"), uid)
	assert.Equal(t, "abcdefgh-0123456789", attempt)
}

func TestSplitKey(t *testing.T) {
	cases := map[string]struct {
		reason, key  string
		uid, attempt string
		ok           bool
	}{
		"Mark":         {reason: "the UID of a pod has no point, so the first one ends it", key: "resource-claims.prebind.dev/u.a", uid: "u", attempt: "a", ok: true},
		"Points":       {reason: "the rest is the attempt's", key: "resource-claims.prebind.dev/u.a.b", uid: "u", attempt: "a.b", ok: true},
		"OtherDomain":  {reason: "another Prebind's", key: "resource-claims.example.com/u.a"},
		"OtherPlugin":  {reason: "another plugin's", key: "device.prebind.dev/u.a"},
		"NoUID":        {reason: "no pod", key: "resource-claims.prebind.dev/.a"},
		"NoAttempt":    {reason: "no attempt", key: "resource-claims.prebind.dev/u."},
		"NoPoint":      {reason: "something that somebody wrote", key: "resource-claims.prebind.dev/note"},
		"Prefix":       {reason: "nothing behind it", key: "resource-claims.prebind.dev/"},
		"NoAnnotation": {reason: "nothing at all", key: ""},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			uid, attempt, ok := splitKey(tc.key)
			assert.Equal(t, tc.ok, ok, tc.reason)
			if tc.ok {
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
		"Mark":      {reason: "as it is written", value: mark{Pod: "web", Node: "node-a"}.encode(), want: mark{Pod: "web", Node: "node-a"}, ok: true},
		"Earlier":   {reason: "an earlier version of Prebind says whether it allocates; the records decide about that", value: `{"pod":"web","node":"node-a","allocated":true}`, want: mark{Pod: "web", Node: "node-a"}, ok: true},
		"Path":      {reason: "a name that no request can be made with", value: `{"pod":"a/b","node":"node-a"}`},
		"LongName":  {reason: "no pod has such a name", value: `{"node":"node-a","pod":"` + strings.Repeat("a", 254) + `"}`},
		"Long":      {reason: "it is not even decoded", value: `{"pod":"web","node":"node-a","note":"` + strings.Repeat("a", maxMarkValue) + `"}`},
		"NoPod":     {reason: "nobody could be asked about it", value: `{"node":"node-a"}`},
		"NoNode":    {reason: "nobody could tell what to look for", value: `{"pod":"web"}`},
		"NoJSON":    {reason: "somebody else's words", value: "mine"},
		"Empty":     {reason: "nothing", value: ""},
		"WrongType": {reason: "a list is no mark", value: `["web"]`},
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

func TestUnsettled_ListsMarksInOrder(t *testing.T) {
	claim := theClaim("c", marked("b", "here-2"), marked("a", "here-1"),
		meta1(gen.Annotation("resource-claims.prebind.dev/pod-x.here-3", "not ours")), meta1(gen.Annotation("note", "x")))
	want := []framework.Mark{
		{Pod: types.NamespacedName{Namespace: "default", Name: "a"}, PodUID: "pod-a", Node: "node-a", Attempt: "here-1"},
		{Pod: types.NamespacedName{Namespace: "default", Name: "b"}, PodUID: "pod-b", Node: "node-a", Attempt: "here-2"},
	}
	assert.Equal(t, want, unsettled(claim), "only annotations that have the form of a mark count")
	other := meta1(gen.Annotation(Name+".example.com/pod-a.here-1", mark{Pod: "a", Node: "node-a"}.encode()))
	assert.Empty(t, unsettled(theClaim("c", other)), "marks of another domain do not count")
	twice := theClaim("d", marked("a", "here-1"))
	marks, err := newReplica(t, newAPI(claim, twice)).Marks(t.Context())
	require.NoError(t, err)
	assert.Equal(t, want, marks, "Marks lists an attempt with two claims once")
}

func TestMarkedByOthers(t *testing.T) {
	cases := map[string]struct {
		reason string
		claim  *resourcev1.ResourceClaim
		want   bool
	}{
		"Nobody":    {reason: "no mark", claim: theClaim("c")},
		"Own":       {reason: "our own attempt is nobody else", claim: theClaim("c", marked("web", "here-1"))},
		"Another":   {reason: "another attempt at this pod's bind", claim: theClaim("c", marked("web", "here-1"), marked("web", "there-1")), want: true},
		"OtherPod":  {reason: "another pod has a reservation of its own", claim: theClaim("c", marked("db", "there-1"))},
		"NoMark":    {reason: "what cannot be read would never be swept, so it must not keep a reservation", claim: theClaim("c", meta1(gen.Annotation(markKey("pod-web", "there-1"), "x")))},
		"NoDomain":  {reason: "another domain is not swept", claim: theClaim("c", meta1(gen.Annotation(Name+".example.com/pod-web.there-1", mark{Pod: "web", Node: "n"}.encode())))},
		"OtherNode": {reason: "wherever to", claim: theClaim("c", meta1(gen.Annotation(markKey("pod-web", "there-1"), mark{Pod: "web", Node: "node-b"}.encode()))), want: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tc.want, markedByOthers(tc.claim, "pod-web", "here-1"), tc.reason)
		})
	}
}

// managed is an entry of managed fields as a real API server v1.36.3 writes it.
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
		"Nothing":   {reason: "where the API server tells nothing, the mark counts"},
		"Ours":      {reason: "the API server says so", entries: []metav1.ManagedFieldsEntry{managed("kube-scheduler", "db"), managed(string(fieldOwner), "web")}},
		"Scheduler": {reason: "kube-scheduler was faster", entries: []metav1.ManagedFieldsEntry{managed("kube-scheduler", "web"), managed(string(fieldOwner), "db")}, want: true},
		"Both":      {reason: "an apply of somebody else adds an owner, ours stays", entries: []metav1.ManagedFieldsEntry{managed("kubectl", "web"), managed(string(fieldOwner), "web")}},
		"OtherPods": {reason: "it is about this pod only", entries: []metav1.ManagedFieldsEntry{managed("kube-scheduler", "db")}},
		"NoFields":  {reason: "an entry without any", entries: []metav1.ManagedFieldsEntry{{Manager: "kube-scheduler"}}},
		"Broken":    {reason: "an entry that cannot be read", entries: []metav1.ManagedFieldsEntry{{Manager: "kube-scheduler", FieldsV1: metav1.NewFieldsV1("{")}}},
		"NoStatus":  {reason: "an entry about annotations", entries: []metav1.ManagedFieldsEntry{{Manager: "kubectl", FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:annotations":{"f:x":{}}}}`)}}},
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
			assert.Equal(t, key, markKey(uid, attempt), "a key is made of its parts, and of nothing else")
		}
		m, readable := decodeMark(value)
		if readable {
			again, ok := decodeMark(m.encode())
			assert.True(t, ok)
			assert.Equal(t, m, again, "a mark says what it said")
		}
		claim := theClaim("c", meta1(gen.Annotation(key, value)))
		assert.Equal(t, ok && readable, len(unsettled(claim)) == 1, "both parts make a mark")
		if markedByOthers(claim, uid, "here-1") {
			assert.NotEmpty(t, unsettled(claim), "what keeps a reservation is swept")
		}
	})
}
