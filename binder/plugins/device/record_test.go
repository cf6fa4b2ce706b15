// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/framework/frameworktest"
	"github.com/prebind/prebind/internal/ledger"
	"github.com/prebind/prebind/internal/podstate"
	"github.com/prebind/prebind/test/gen"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// one, two and half are the requests of attempts in these tests.
var (
	one  = devices{"gpu": {"GPU-1": whole}}
	two  = devices{"gpu": {"GPU-2": whole}}
	half = devices{"gpu": {"GPU-1": whole / 2}}
)

// of returns a record with these entries.
func of(entries map[types.UID]*entry) *record {
	for uid, e := range entries {
		e.Pod = ledger.ObjectName{Namespace: "default", Name: string(uid)}
	}
	return &record{Node: "node-a", Entries: entries}
}

func grants(all ...grant) *entry { return &entry{Grants: all} }

func boundBy(all ...grant) *entry { return &entry{Grants: all, Bound: true} }

// clone encodes the record and decodes it again.
func clone(t *testing.T, r *record) *record {
	t.Helper()
	data, err := r.Encode()
	require.NoError(t, err)
	c, err := decodeObject(r.Node, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: recordName(r.Node)}, Data: data})
	require.NoError(t, err)
	return c
}

func TestConflicts(t *testing.T) {
	third := devices{"gpu": {"GPU-1": 333333}}
	cases := map[string]struct {
		reason  string
		entries map[types.UID]*entry
		asked   devices
		want    string
	}{
		"Own":         {reason: "the pod itself holds the device", entries: map[types.UID]*entry{"me": boundBy(grant{"a", one})}, asked: one},
		"OtherDevice": {reason: "the pod holds another device", entries: map[types.UID]*entry{"p": boundBy(grant{"a", two})}, asked: one},
		"OtherKey":    {reason: "the device belongs to another resource", entries: map[types.UID]*entry{"p": boundBy(grant{"a", devices{"fpga": {"GPU-1": whole}}})}, asked: one},
		"Thirds":      {reason: "three shares of 0.333333 fit on one device", entries: map[types.UID]*entry{"p": boundBy(grant{"a", third}), "q": boundBy(grant{"a", third})}, asked: third},
		"FourThirds":  {reason: "a fourth share exceeds the device", entries: map[types.UID]*entry{"p": boundBy(grant{"a", third}), "q": boundBy(grant{"a", third}), "r": boundBy(grant{"a", third})}, asked: third, want: "device GPU-1 (gpu) is held by pod default/p (0.333333), pod default/q (0.333333), pod default/r (0.333333): requested 0.333333, free 0.000001"},
		"Attempts": {
			reason: "the grants of two attempts for one pod are not added up", entries: map[types.UID]*entry{"p": grants(grant{"a", half}, grant{"b", half})}, asked: half,
		},
		"MostOfAttempts": {
			reason: "the largest grant of the pod counts", entries: map[types.UID]*entry{"p": grants(grant{"a", half}, grant{"b", one})}, asked: half,
			want: "device GPU-1 (gpu) is held by pod default/p (bind in progress): requested 0.5, free 0",
		},
		"Overcommitted": {
			reason: "pods that were bound without Prebind can hold more than the device", entries: map[types.UID]*entry{"p": boundBy(grant{"a", one}), "q": boundBy(grant{"b", one})}, asked: half,
			want: "device GPU-1 (gpu) is held by pod default/p, pod default/q: requested 0.5, free 0",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			r := of(tc.entries)
			assert.Equal(t, tc.want, r.describe(r.conflicts("me", tc.asked)), tc.reason)
		})
	}
}

func TestDescribe_BoundsTheMessage(t *testing.T) {
	entries, asked := map[types.UID]*entry{}, devices{"gpu": {}}
	for i := range 200 {
		id := strings.Repeat("x", 200) + fmt.Sprintf("%03d", i)
		asked["gpu"][id] = whole
		entries[types.UID(strings.Repeat("p", 200)+fmt.Sprintf("%03d", i))] = boundBy(grant{"a", asked})
	}
	r := of(entries)
	text := r.describe(r.conflicts("me", asked))
	assert.Less(t, len(text), 6000)
	assert.Contains(t, text, "and 196 more", "the message limits the number of pods")
	assert.Contains(t, text, "; and 196 more", "the message limits the number of devices")
}

func TestGrantAndRelease(t *testing.T) {
	pod := podNamed("p")
	cases := map[string]struct {
		reason string
		entry  *entry
		do     func(r *record)
		want   *entry
	}{
		"First":        {reason: "the first grant creates the entry", do: granting(pod, "a", one), want: grants(grant{"a", one})},
		"OtherDevices": {reason: "a later Binding can request other devices", entry: grants(grant{"a", one}), do: granting(pod, "a", two), want: grants(grant{"a", one}, grant{"a", two})},
		"OtherAttempt": {reason: "each attempt has its own grant", entry: grants(grant{"a", one}), do: granting(pod, "b", one), want: grants(grant{"a", one}, grant{"b", one})},
		"NoDevices":    {reason: "a bind that requests only the lock has no grant", do: granting(pod, "a", devices{})},

		"Release":           {reason: "the release of the last grant removes the entry", entry: grants(grant{"a", one}, grant{"a", two}), do: releasing},
		"ReleaseOneOfTwo":   {reason: "another attempt keeps its grant", entry: grants(grant{"a", one}, grant{"b", one}), do: releasing, want: grants(grant{"b", one})},
		"ReleaseBound":      {reason: "the grant belongs to the bound pod", entry: boundBy(grant{"a", one}), do: releasing, want: boundBy(grant{"a", one})},
		"ReleaseNothing":    {reason: "the pod has no entry", do: releasing},
		"Drop":              {reason: "drop removes all grants of the pod", entry: boundBy(grant{"a", one}, grant{"b", one}), do: func(r *record) { r.drop("p") }},
		"Bind":              {reason: "the pod keeps the grant that it was bound with", entry: grants(grant{"a", one}, grant{"b", two}), do: binding(pod, "b", two), want: boundBy(grant{"b", two})},
		"BindSecondRound":   {reason: "the pod keeps the devices in its annotations", entry: grants(grant{"a", one}, grant{"a", two}), do: binding(pod, "a", two), want: boundBy(grant{"a", two})},
		"BindSameDevices":   {reason: "another attempt has a grant of the same devices", entry: grants(grant{"a", one}, grant{"b", one}), do: binding(pod, "a", one), want: boundBy(grant{"a", one})},
		"BindUnknownOfTwo":  {reason: "the pod keeps all grants of the attempt if the devices match none, and has its devices", entry: grants(grant{"a", one}, grant{"a", two}, grant{"b", one}), do: binding(pod, "a", half), want: boundBy(grant{"a", one}, grant{"a", two}, grant{"a", half})},
		"BindOtherAttempt":  {reason: "the attempt has no grant, and the devices match another one", entry: grants(grant{"a", one}, grant{"b", two}), do: binding(pod, "c", two), want: boundBy(grant{"b", two})},
		"BindAgain":         {reason: "the pod already has its grant", entry: boundBy(grant{"a", one}), do: binding(pod, "b", two), want: boundBy(grant{"a", one})},
		"BindLost":          {reason: "the record was lost, and bind restores the entry", do: binding(pod, "a", one), want: boundBy(grant{"a", one})},
		"BindLostNoDevices": {reason: "the annotations of the pod list no devices", do: binding(pod, "a", nil)},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			other := boundBy(grant{"a", two})
			r := of(map[types.UID]*entry{"other": other})
			if tc.entry != nil {
				tc.entry.Pod = nameOf(pod)
				r.Entries["p"] = tc.entry
			}
			if tc.want != nil {
				tc.want.Pod = nameOf(pod)
			}
			tc.do(r)
			assert.Equal(t, tc.want, r.Entries["p"], tc.reason)
			assert.Equal(t, boundBy(grant{"a", two}).Grants, r.Entries["other"].Grants, "the entries of other pods do not change")
		})
	}
}

func granting(pod *corev1.Pod, attempt string, d devices) func(*record) {
	return func(r *record) { r.grant(pod, attempt, d) }
}

func releasing(r *record) { r.release("p", "a") }

func binding(pod *corev1.Pod, attempt string, d devices) func(*record) {
	return func(r *record) { r.bind(pod, grant{Attempt: attempt, Devices: d}) }
}

func TestLock(t *testing.T) {
	p, q := podNamed("p"), podNamed("q")
	r := of(map[types.UID]*entry{})
	r.take(p, "a", noon.Add(time.Millisecond))
	assert.Equal(t, noon.Add(time.Second), r.Lock.Expires, "the expiry is rounded up to full seconds")
	r.take(p, "b", noon.Add(time.Minute))
	r.take(p, "a", noon.Add(time.Hour))
	r.unlock("q", "a")
	r.unlock("p", "c")
	assert.Equal(t, &lock{Pod: nameOf(p), UID: "p", Attempts: []string{"a", "b"}, Expires: noon.Add(time.Hour)}, r.Lock,
		"the lock lists each attempt once, and the latest expiry counts; other pods and attempts cannot release it")
	assert.True(t, r.prepared("p", "a", ask{lock: true}, noon.Add(time.Hour)))
	assert.False(t, r.prepared("p", "c", ask{lock: true}, noon), "another attempt holds the lock")
	r.unlock("p", "a")
	assert.Equal(t, []string{"b"}, r.Lock.Attempts, "the other attempt still holds the lock")
	r.take(q, "x", noon)
	assert.Equal(t, []string{"x"}, r.Lock.Attempts, "the new holder replaces the attempts of the expired lock")
	r.drop("q")
	assert.True(t, r.empty(), "drop also removes the lock of the pod")
}

func TestStateOf(t *testing.T) {
	cases := map[string]struct {
		reason string
		pod    *corev1.Pod
		want   podstate.State
	}{
		"Terminating":  {reason: "the API server no longer binds the pod", pod: podNamed("p", gen.Terminating()), want: podstate.Gone},
		"Unknown":      {reason: "the pod may still run", pod: phased(corev1.PodUnknown), want: podstate.BoundHere},
		"NeverStarted": {reason: "the pod failed before it was bound", pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "p"}, Status: corev1.PodStatus{Phase: corev1.PodFailed}}, want: podstate.Gone},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) { assert.Equal(t, tc.want, stateOf(tc.pod, "p", "node-a"), tc.reason) })
	}
}

func phased(phase corev1.PodPhase) *corev1.Pod {
	pod := podNamed("p", gen.BoundTo("node-a"))
	pod.Status.Phase = phase
	return pod
}

func TestRecordName(t *testing.T) {
	label := strings.Repeat("x", 61)
	long := strings.Join([]string{label, label, label, label}, ".")
	names := []string{
		"node-a", "a", long, long + "y", strings.Repeat("x", 253), strings.Repeat("x", 252) + "y",
		// These names are truncated at a dot or a hyphen.
		strings.Repeat("x", 219) + "." + strings.Repeat("y", 33), strings.Repeat("x", 219) + "-" + strings.Repeat("y", 33),
		strings.Repeat("x", 218) + "--" + strings.Repeat("y", 33), strings.Repeat("a.", 126) + "a",
	}
	seen := map[string]bool{}
	for _, node := range names {
		require.Empty(t, validation.IsDNS1123Subdomain(node))
		name := recordName(node)
		assert.Empty(t, validation.IsDNS1123Subdomain(name), "the record of %s is named %s", node, name)
		assert.False(t, seen[name], "two nodes have the same record: %s", name)
		seen[name] = true
	}
	assert.Equal(t, "prebind-devices-node-a", recordName("node-a"))
}

func TestDecode(t *testing.T) {
	const pod = `"pod":"default/p"`
	const devs = `"devices":{"gpu":{"GPU-1":"1"}}`
	cases := map[string]struct {
		reason, key, text string
		want              string
	}{
		"Entry":            {reason: "Encode writes this form", key: "p", text: `{` + pod + `,"bound":true,"grants":[{"attempt":"a",` + devs + `}]}`},
		"ByHand":           {reason: "an operator can change spaces and order", key: "p", text: "{ \"grants\": [\n{" + devs + `, "attempt":"a"}], ` + pod + " }\n"},
		"NoAttempt":        {reason: "a restored grant of a bound pod can have no attempt", key: "p", text: `{` + pod + `,"bound":true,"grants":[{"attempt":"",` + devs + `}]}`},
		"TwoDevices":       {reason: "device IDs are case-sensitive", key: "p", text: `{` + pod + `,"grants":[{"attempt":"a","devices":{"gpu":{"GPU-1":"1","gpu-1":"1"}}}]}`},
		"Lock":             {reason: "Encode writes this form", key: lockField, text: `{` + pod + `,"uid":"p","attempts":["a"],"expires":"2026-01-01T12:00:00Z"}`},
		"Null":             {reason: "the entry has no content", key: "p", text: `null`, want: "required"},
		"UnknownLong":      {reason: "the message shortens long values", key: "p", text: `{"` + strings.Repeat("x", 1<<16) + `":1}`, want: "unknown field"},
		"DeviceTwice":      {reason: "one share would be lost", key: "p", text: `{` + pod + `,"grants":[{"attempt":"a","devices":{"gpu":{"GPU-1":"1","GPU-1":"0.5"}}}]}`, want: "duplicate field"},
		"NoPod":            {reason: "the holder is unknown", key: "p", text: `{"grants":[{"attempt":"a",` + devs + `}]}`, want: "required"},
		"BadPod":           {reason: "the name cannot be looked up", key: "p", text: `{"pod":"default/a/b","grants":[{"attempt":"a",` + devs + `}]}`, want: "namespace/name"},
		"NoGrants":         {reason: "an entry must hold a device", key: "p", text: `{` + pod + `}`, want: "required"},
		"NoAttemptPending": {reason: "a pending grant without an attempt would never end", key: "p", text: `{` + pod + `,"grants":[{` + devs + `}]}`, want: "required"},
		"NoDevices":        {reason: "an entry must hold a device", key: "p", text: `{` + pod + `,"grants":[{"attempt":"a"}]}`, want: "required"},
		"NullIDs":          {reason: "an entry must hold a device", key: "p", text: `{` + pod + `,"grants":[{"attempt":"a","devices":{"gpu":null}}]}`, want: "requires a name and devices"},
		"NullShare":        {reason: "the share is unknown", key: "p", text: `{` + pod + `,"grants":[{"attempt":"a","devices":{"gpu":{"GPU-1":null}}}]}`, want: "requires a name and a share"},
		"BadShare":         {reason: "the share is unknown", key: "p", text: `{` + pod + `,"grants":[{"attempt":"a","devices":{"gpu":{"GPU-1":"half"}}}]}`, want: "invalid share"},
		"NoKey":            {reason: "the device is unknown", key: "p", text: `{` + pod + `,"grants":[{"attempt":"a","devices":{"":{"GPU-1":"1"}}}]}`, want: "requires a name"},
		"LockNoUID":        {reason: "the holder is unknown", key: lockField, text: `{` + pod + `,"attempts":["a"],"expires":"2026-01-01T12:00:00Z"}`, want: "required"},
		"LockNoAttempts":   {reason: "the holder is unknown", key: lockField, text: `{` + pod + `,"uid":"p","attempts":[],"expires":"2026-01-01T12:00:00Z"}`, want: "required"},
		"LockNoEnd":        {reason: "a lock without an end expires immediately", key: lockField, text: `{` + pod + `,"uid":"p","attempts":["a"]}`, want: "required"},
		"NoNode":           {reason: "the node is unknown", key: nodeField, text: "", want: "must be in ConfigMap"},
		"OtherNode":        {reason: "the ConfigMap is a copy of another node's record", key: nodeField, text: "node-b", want: "must be in ConfigMap"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: recordName("node-a")}, Data: map[string]string{nodeField: "node-a"}}
			object.Data[tc.key] = tc.text
			rec, err := decodeObject("node-a", object)
			if tc.want == "" {
				require.NoError(t, err, tc.reason)
				assert.Equal(t, rec.Entries, clone(t, rec).Entries, "Encode and decode lose nothing")
				assert.Equal(t, rec.Lock, clone(t, rec).Lock)
				return
			}
			require.ErrorContains(t, err, tc.want, tc.reason)
			assert.True(t, frameworktest.IsKind(err, framework.KindInternal))
			assert.Contains(t, err.Error(), namespace+"/"+object.Name)
			assert.Contains(t, err.Error(), tc.key, "the message names the key")
			assert.Less(t, len(err.Error()), 1000)
		})
	}
	_, err := decodeObject("node-a", &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: recordName("node-a")}, Data: map[string]string{nodeField: "node-a"}, BinaryData: map[string][]byte{"p": nil}})
	assert.ErrorContains(t, err, "binaryData", "a client can write text as binary data")
}

// Two node names can have the same record name only if one of them was chosen for that.
func TestRecord_OfAnotherNodeIsAnError(t *testing.T) {
	long := strings.Repeat("x", 253)
	cutOff := strings.TrimPrefix(recordName(long), recordPrefix)
	require.Equal(t, recordName(long), recordName(cutOff))
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: recordName(long)}, Data: map[string]string{nodeField: long}}
	_, err := decodeObject(long, object)
	require.NoError(t, err)
	_, err = decodeObject(cutOff, object)
	assert.ErrorContains(t, err, "same ConfigMap name")
}

// FuzzDecode checks that a ConfigMap is either decoded completely, or rejected with an error
// that names the key.
func FuzzDecode(f *testing.F) {
	r := of(map[types.UID]*entry{"p": grants(grant{"a", half}, grant{"b", two})})
	r.take(podNamed("p"), "a", noon)
	data, err := r.Encode()
	require.NoError(f, err)
	f.Add("p", data["p"], lockField, data[lockField])
	f.Add("p", `{"pod":"a/b","bound":true,"grants":[{"attempt":"","devices":{"gpu":{"G":"1"}}}]}`, "q", "null")
	f.Add("p", `{"pod":"a/b","grants":[{"attempt":"a","devices":{"gpu":{"G":"1","\u0047":"1"}}}]}`, lockField, "{}")
	f.Add(nodeField, "node-b", "p", "[]")
	f.Fuzz(func(t *testing.T, key1, text1, key2, text2 string) {
		data := map[string]string{nodeField: "node-a", key1: text1, key2: text2}
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: recordName("node-a")}, Data: data}
		rec, err := decodeObject("node-a", object)
		if err != nil {
			assert.True(t, frameworktest.IsKind(err, framework.KindInternal))
			assert.Less(t, len(err.Error()), 1500)
			return
		}
		keys := len(data) - 1
		if rec.Lock != nil {
			keys--
		}
		assert.Len(t, rec.Entries, keys, "decode drops no entry")
		encoded, err := rec.Encode()
		require.NoError(t, err)
		second := clone(t, rec)
		assert.Equal(t, rec.Entries, second.Entries)
		reencoded, err := second.Encode()
		require.NoError(t, err)
		assert.Equal(t, encoded, reencoded, "decode drops no lock")
	})
}
