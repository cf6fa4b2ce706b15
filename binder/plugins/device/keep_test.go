// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"fmt"
	"maps"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
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
			found := unconfirmed(object) != nil
			assert.Equal(t, tc.want, found, tc.reason)
			if rec, err := decode(object.Data); err == nil && len(rec.marks()) > 0 {
				assert.True(t, found, "the record has marks")
			}
		})
	}
}

// FuzzUnconfirmed checks that the index contains every record with marks.
func FuzzUnconfirmed(f *testing.F) {
	f.Add("p", `{"pod":"ns/p","grants":[{"attempt":"a","devices":{"bound":{"x":"1"}}}]}`)
	f.Add("p", `{"pod":"ns/p","Bound":true,"bound":false,"grants":[{"attempt":"a","devices":{"gpu":{"\"bound\":true":"1"}}}]}`)
	f.Add(lockField, `{"pod":"ns/p","uid":"p","attempts":["a"],"expires":"2026-01-01T12:00:00Z"}`)
	f.Fuzz(func(t *testing.T, key, text string) {
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: recordName("node-a")}, Data: map[string]string{key: text, nodeField: "node-a"}}
		if rec, err := decode(object.Data); err == nil && len(rec.marks()) > 0 && unconfirmed(object) == nil {
			t.Fatalf("the record has marks and is not found: %q", text)
		}
	})
}

// A call does not list the pods of all nodes of a large cluster. A few calls do.
func TestTidy_ReachesEveryRecordInBoundedSteps(t *testing.T) {
	const nodes = 2*tidyNodes + 10
	c := newCrowd(t, nodes, 0)
	c.mu.Lock()
	for n := range nodes {
		delete(c.pods, types.NamespacedName{Namespace: "default", Name: fmt.Sprintf("pod-%d-0", n)})
	}
	c.mu.Unlock()
	left := func() int {
		count := 0
		for n := range nodes {
			object := &corev1.ConfigMap{}
			require.NoError(t, c.Get(t.Context(), keyOf(nodeNamed(n)), object))
			if len(object.Data) == podsPerNode+1 {
				count++
			}
		}
		return count
	}
	for call, want := range []struct{ lists, left int }{{tidyNodes, tidyNodes + 10}, {tidyNodes, 10}, {10, 0}, {tidyNodes, 0}} {
		before := c.podLists()
		require.NoError(t, c.plugin.Tidy(t.Context()))
		assert.Equal(t, want.left, left(), "records of deleted pods after call %d", call+1)
		assert.Equal(t, want.lists, c.podLists()-before, "list requests for pods in call %d; the fourth call starts over", call+1)
	}
}

// A slow API server delays the later records, but does not exclude them.
func TestTidy_ContinuesAfterATimeout(t *testing.T) {
	c := newCrowd(t, 31, 0)
	for range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		until := c.podLists() + 10
		c.onList = func() {
			if len(c.looked) == until {
				cancel()
			}
		}
		assert.ErrorIs(t, c.plugin.Tidy(ctx), context.Canceled)
	}
	assert.Len(t, c.looked, 30)
	assert.Len(t, sets.New(c.looked...), 30, "Tidy visits each record once")
}
