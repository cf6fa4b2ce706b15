// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/ledger"
	"github.com/prebind/prebind/internal/notify"
	"github.com/prebind/prebind/internal/podstate"
	"github.com/prebind/prebind/test/fakeapi"
	"github.com/prebind/prebind/test/gen"
)

// A record that the index does not contain is never swept.
func TestUnconfirmed_FindsEveryRecordWithMarks(t *testing.T) {
	const rest = `"grants":[{"attempt":"a","devices":{"gpu":{"GPU-1":"1"}}}]}`
	bound, pending := `{"pod":"ns/p","bound":true,`+rest, `{"pod":"ns/p",`+rest
	lock := `{"pod":"ns/p","uid":"p","attempts":["a"],"expires":"2026-01-01T12:00:00Z"}`
	for name, tc := range map[string]struct {
		reason string
		data   map[string]string
		want   bool
	}{
		"Empty":      {reason: "a record without entries has no marks"},
		"Confirmed":  {reason: "a bound pod's grant is not a mark", data: map[string]string{"p": bound}},
		"Pending":    {reason: "a grant that is not confirmed is a mark", data: map[string]string{"p": pending}, want: true},
		"OneOfTwo":   {reason: "one mark is enough", data: map[string]string{"p": bound, "q": pending}, want: true},
		"Lock":       {reason: "a lock is a mark", data: map[string]string{"p": bound, lockField: lock}, want: true},
		"Spaces":     {reason: "an entry that was edited by hand is in the index even without marks", data: map[string]string{"p": `{"bound" : true, "pod":"ns/p",` + rest}, want: true},
		"Unreadable": {reason: "an entry that cannot be read is reported", data: map[string]string{"p": "GPU-1"}, want: true},
		"Value": {
			reason: "the text in a value does not confirm the entry: its quotes are escaped",
			data:   map[string]string{"p": `{"pod":"ns/p","grants":[{"attempt":"\"bound\":true","devices":{"gpu":{"\"bound\":true":"1"}}}]}`}, want: true,
		},
		"FalseValue": {reason: "bound can be written as false", data: map[string]string{"p": `{"pod":"ns/p","bound":false,` + rest}, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: recordName("node-a")}, Data: map[string]string{nodeField: "node-a"}}
			maps.Copy(object.Data, tc.data)
			found := unconfirmed(object) == unconfirmedKey
			assert.Equal(t, tc.want, found, tc.reason)
			if rec, err := decode(object.Data); err == nil && len(rec.marks()) > 0 {
				assert.True(t, found, "the record has marks")
			}
		})
	}
}

// tidying returns a plugin with this many records, each of a pod that was deleted, and the nodes whose pods it lists.
func tidying(t *testing.T, nodes int) (s *server, l *fakeapi.Connection, p *Plugin, listed *[]string) {
	t.Helper()
	s, listed = newServer(t), new([]string)
	l = s.api.Connect()
	for n := range nodes {
		rec := &record{Node: fmt.Sprintf("node-%d", n), Entries: map[types.UID]*entry{}}
		rec.grant(podNamed("gone"), "a", one)
		rec.Entries["gone"].Bound = true
		data, err := rec.Encode()
		require.NoError(t, err)
		s.api.Put(&corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: recordName(rec.Node), Labels: map[string]string{ledger.Label: component}}, Data: data,
		})
	}
	l.Before = func(c fakeapi.Call) error {
		if c.Verb == "list" && c.List.FieldSelector != nil {
			if node, ok := c.List.FieldSelector.RequiresExactMatch("spec.nodeName"); ok {
				*listed = append(*listed, node)
			}
		}
		return nil
	}
	return s, l, pluginOn(s, s.api.Cache(), l, notify.NewHub()), listed
}

// A call does not list the pods of all nodes of a large cluster. A few calls do.
func TestTidy_ReachesEveryRecordInBoundedSteps(t *testing.T) {
	s, _, p, listed := tidying(t, 2*podstate.MaxVisits+10)
	for call, want := range []struct{ lists, left int }{{podstate.MaxVisits, podstate.MaxVisits + 10}, {podstate.MaxVisits, 10}, {10, 0}} {
		*listed = nil
		require.NoError(t, p.Tidy(t.Context()))
		assert.Len(t, *listed, want.lists, "list requests for pods in call %d", call+1)
		left := 0
		for _, object := range fakeapi.All(s.api, &corev1.ConfigMap{}) {
			if object.Data["gone"] != "" {
				left++
			}
		}
		assert.Equal(t, want.left, left, "records of deleted pods after call %d", call+1)
	}
	assert.Len(t, fakeapi.All(s.api, &corev1.ConfigMap{}), podstate.MaxVisits+20, "the third call starts over: it deletes empty records")
}

// A slow API server delays the later records, but does not exclude them.
func TestTidy_ContinuesAfterATimeout(t *testing.T) {
	_, l, p, listed := tidying(t, 31)
	note := l.Before
	for range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		until := len(*listed) + 10
		l.Before = func(c fakeapi.Call) error {
			if err := note(c); err != nil || len(*listed) == until {
				cancel()
			}
			return nil
		}
		assert.NoError(t, p.Tidy(ctx), "a failure would fire PrebindSweepFailing")
	}
	assert.Len(t, *listed, 30)
	assert.Len(t, sets.New(*listed...), 30, "Tidy visits each record once")
}

// A tenant can have many pods with long annotations. Those that have ended do not keep other tenants from the devices of the node until Tidy visits it.
func TestPreBind_FullRecord(t *testing.T) {
	resource := schema.GroupKind{Kind: "ConfigMap"}
	for name, tc := range map[string]struct {
		reason string
		phase  corev1.PodPhase
		// fails is the answer to each write.
		fails error
		want  framework.Kind
	}{
		"Ended":     {reason: "ended pods hold nothing", phase: corev1.PodSucceeded},
		"Running":   {reason: "another node has room", phase: corev1.PodRunning, want: framework.KindRefuse},
		"TooLarge":  {reason: "the API server does not read the object", phase: corev1.PodRunning, fails: apierrors.NewRequestEntityTooLargeError("limit is 3145728"), want: framework.KindRefuse},
		"Forbidden": {reason: "an operator made the record immutable", phase: corev1.PodSucceeded, fails: apierrors.NewInvalid(resource, "a", field.ErrorList{field.Forbidden(field.NewPath("data"), "")}), want: framework.KindInternal},
	} {
		t.Run(name, func(t *testing.T) {
			listed := func(first int) gen.Meta { // A quote is two bytes of a record.
				var ids []string
				for i := range 15 {
					ids = append(ids, fmt.Sprint(strings.Repeat(`"`, maxID-3), first+i))
				}
				return gen.Annotation(gpu, strings.Join(ids, ","))
			}
			rec := newRecord("node-a")
			objects := []client.Object{podNamed("me")}
			for size := 0; size <= corev1.MaxSecretSize; {
				pod := podNamed(fmt.Sprint("other-", len(objects)), gen.BoundTo("node-a"), listed(100))
				pod.Status.Phase = tc.phase
				rec.bind(pod, grantOf(pod))
				text, err := ledger.Marshal(rec.Entries[pod.UID])
				require.NoError(t, err)
				if size += len(text); size > corev1.MaxSecretSize {
					delete(rec.Entries, pod.UID)
				}
				objects = append(objects, pod)
			}
			data, err := rec.Encode()
			require.NoError(t, err)
			s := newServer(t, append(objects, &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: recordName("node-a"), Labels: map[string]string{ledger.Label: component}}, Data: data,
			})...)
			l, asked := s.api.Connect(), 0
			l.Before = func(c fakeapi.Call) error {
				if c.Verb != "update" {
					return nil
				}
				asked++
				return tc.fails
			}
			err = pluginOn(s, s.api.Cache(), l, s.hub).PreBind(t.Context(), bindOf(podNamed("me"), "a", listed(500)))
			assert.LessOrEqual(t, asked, 6, "writes")
			if tc.want == "" {
				require.NoError(t, err, tc.reason)
				assert.Equal(t, []string{"me"}, slices.Collect(maps.Keys(held(s))))
				return
			}
			assert.Equal(t, tc.want, framework.AsError(Name, err).Kind, tc.reason)
			assert.ErrorContains(t, err, "ConfigMap prebind-system/prebind-devices-node-a: ")
			assert.Equal(t, tc.want == framework.KindRefuse, strings.Contains(err.Error(), "the record of the devices of node node-a is full; choose another node"))
			assert.Zero(t, s.count())
		})
	}
}
