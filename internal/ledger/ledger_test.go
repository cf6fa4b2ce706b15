// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/fakeapi"
)

const (
	namespace = "prebind-system"
	component = "test-record"
)

// count is a record that contains a number.
type count struct {
	key string
	n   int
}

func (c *count) Key() string { return c.key }

func (c *count) Encode() (map[string]string, error) {
	return map[string]string{"key": c.key, "n": strconv.Itoa(c.n)}, nil
}

func decodeCount(data map[string]string) (*count, error) {
	n, err := strconv.Atoi(data["n"])
	if err != nil {
		return nil, Unreadable("n", err, "write a number")
	}
	return &count{key: data["key"], n: n}, nil
}

// nameOf returns the same name for keys that differ only in case.
func nameOf(key string) string { return "test-" + strings.ToLower(key) }

func newServer() *fakeapi.Connection { return fakeapi.New().Connect() }

// open returns the store of a replica.
func open(server *fakeapi.Connection) *Store[string, *count] {
	return Open(framework.Handle{Cached: server, Live: server, Writer: server, Namespace: namespace}, Kind[string, *count]{
		Component: component, Name: nameOf, Decode: decodeCount,
		Missing: func(_ context.Context, key string) (*count, error) { return &count{key: key, n: 100}, nil },
	})
}

func increment(c *count) error {
	c.n++
	return nil
}

// numberOf returns the number of the record a, or -1.
func numberOf(t *testing.T, server *fakeapi.Connection) int {
	t.Helper()
	v, err := open(server).Get(t.Context(), server, "a")
	require.NoError(t, err)
	if v == nil {
		return -1
	}
	return v.Record.n
}

// objectOf returns the ConfigMap of the record a.
func objectOf(t *testing.T, server *fakeapi.Connection) *corev1.ConfigMap {
	t.Helper()
	object := &corev1.ConfigMap{}
	require.NoError(t, server.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: nameOf("a")}, object))
	return object
}

// Another replica writes the record between the read and the write of an Update.
func TestUpdate_DecidesAgainAfterAConflict(t *testing.T) {
	server := newServer()
	s := open(server)
	require.NoError(t, s.Update(t.Context(), "a", increment))
	var seen []int
	require.NoError(t, s.Update(t.Context(), "a", func(c *count) error {
		if seen = append(seen, c.n); len(seen) == 1 {
			require.NoError(t, open(server).Update(t.Context(), "a", increment))
		}
		return increment(c)
	}))
	assert.Equal(t, []int{101, 102}, seen)
	assert.Equal(t, 103, numberOf(t, server))
}

// A decision by a cache that is behind is repeated, also if it changes nothing or fails.
func TestUpdate_CacheIsBehind(t *testing.T) {
	errOld := errors.New("it is old")
	for name, decideOld := range map[string]func(c *count) error{
		"changes": increment,
		"nothing": func(*count) error { return nil },
		"fails":   func(*count) error { return errOld },
	} {
		t.Run(name, func(t *testing.T) {
			server := newServer()
			require.NoError(t, open(server).Update(t.Context(), "a", increment))
			s := open(server)
			s.h.Cached = fakeapi.New(objectOf(t, server)).Cache()
			require.NoError(t, open(server).Update(t.Context(), "a", increment))
			var seen []int
			require.NoError(t, s.Update(t.Context(), "a", func(c *count) error {
				if seen = append(seen, c.n); c.n == 101 {
					return decideOld(c)
				}
				return increment(c)
			}))
			assert.Equal(t, []int{101, 102}, seen)
			assert.Equal(t, 103, numberOf(t, server))
		})
	}
}

// The cache is behind for a moment after each write. Many updates in this moment cost one request each.
func TestUpdate_UsesItsLastWrite(t *testing.T) {
	server := newServer()
	s := open(server)
	require.NoError(t, s.Update(t.Context(), "a", increment))
	s.h.Cached, s.h.Live = fakeapi.New(objectOf(t, server)).Cache(), nil
	for range 3 {
		require.NoError(t, s.Update(t.Context(), "a", increment))
	}
	assert.Equal(t, 104, numberOf(t, server))
	s.h.Cached, s.h.Live = server, server
	require.NoError(t, open(server).Update(t.Context(), "a", increment))
	s.h.Live = nil
	require.NoError(t, s.Update(t.Context(), "a", increment), "the cache is newer")
	assert.Equal(t, 106, numberOf(t, server))
}

// A large record is not kept beside the cache.
func TestUpdate_KeepsNoLargeRecord(t *testing.T) {
	server := newServer()
	s := open(server)
	require.NoError(t, s.Update(t.Context(), "a", increment))
	object := objectOf(t, server)
	object.Annotations = map[string]string{"note": strings.Repeat("x", maxKept)}
	require.NoError(t, server.Update(t.Context(), object))
	require.NoError(t, s.Update(t.Context(), "a", increment))
	assert.Equal(t, 102, numberOf(t, server))
	for _, turn := range s.turns {
		assert.Nil(t, <-turn)
	}
}

func TestUpdate_WritesOnlyChanges(t *testing.T) {
	server := newServer()
	errOdd := errors.New("it is odd")
	odd := func(c *count) error { c.n++; return errOdd }
	assert.ErrorIs(t, open(server).Update(t.Context(), "a", odd), errOdd)
	require.NoError(t, open(server).Update(t.Context(), "a", func(*count) error { return nil }))
	assert.Equal(t, -1, numberOf(t, server))
}

// A record without its label is not in the cache.
func TestWrite_RestoresItsLabels(t *testing.T) {
	server := newServer()
	s := open(server)
	require.NoError(t, s.Update(t.Context(), "a", increment))
	object := objectOf(t, server)
	assert.Equal(t, map[string]string{Label: component, "app.kubernetes.io/managed-by": "prebind"}, object.Labels)
	object.Labels = map[string]string{"mine": "x"}
	require.NoError(t, server.Update(t.Context(), object))
	require.NoError(t, s.Update(t.Context(), "a", increment))
	assert.Equal(t, map[string]string{"mine": "x", Label: component, "app.kubernetes.io/managed-by": "prebind"}, objectOf(t, server).Labels)
}

func TestWriteAndDelete_RequireTheVersionThatWasRead(t *testing.T) {
	server := newServer()
	s := open(server)
	first, second := &Version[*count]{Record: &count{key: "a"}}, &Version[*count]{Record: &count{key: "a"}}
	require.NoError(t, s.Write(t.Context(), first))
	assert.ErrorIs(t, s.Write(t.Context(), second), ErrChanged, "the record already exists")
	first.Record.n = 1
	require.NoError(t, s.Write(t.Context(), first), "Write updates the version")
	read, err := s.Get(t.Context(), server, "a")
	require.NoError(t, err)
	first.Record.n = 2
	require.NoError(t, s.Write(t.Context(), first))
	assert.ErrorIs(t, s.Write(t.Context(), read), ErrChanged)
	assert.ErrorIs(t, s.Delete(t.Context(), read), ErrChanged)
	require.NoError(t, s.Delete(t.Context(), first))
	assert.ErrorIs(t, s.Delete(t.Context(), first), ErrChanged)
	assert.ErrorIs(t, s.Write(t.Context(), first), ErrChanged, "the record was deleted")
}

// The context also ends an Update that waits for its turn.
func TestUpdate_EndsWithTheContext(t *testing.T) {
	s := open(newServer())
	errEnough := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	require.NoError(t, s.Update(t.Context(), "a", func(*count) error {
		cancel(errEnough)
		assert.ErrorIs(t, s.Update(ctx, "a", increment), errEnough, "another Update of the key is running")
		return nil
	}))
	assert.ErrorIs(t, s.Update(ctx, "a", increment), errEnough)
	require.NoError(t, s.Update(t.Context(), "a", increment), "Update ends its turn")
}

func TestUnreadable_AffectsNoOtherRecord(t *testing.T) {
	server := newServer()
	s := open(server)
	put := func(name string, data map[string]string, binary map[string][]byte) {
		require.NoError(t, server.Create(t.Context(), &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{Label: component}}, Data: data, BinaryData: binary,
		}))
	}
	require.NoError(t, s.Update(t.Context(), "z", increment))
	put("test-a", map[string]string{"key": "a", "n": "one"}, nil)
	put("test-b", map[string]string{"key": "c", "n": "1"}, nil)
	put("test-d", map[string]string{"key": "D", "n": "1"}, nil)
	put("test-e", map[string]string{"key": "e", "n": "1"}, map[string][]byte{"m": nil})
	for key, want := range map[string]string{
		"a": `key "n" cannot be decoded: strconv.Atoi: parsing "one": invalid syntax; write a number`,
		"b": `it contains the record of "c", which must be in ConfigMap test-c`,
		"d": `it contains the record of "D", not of "d": both have the same ConfigMap name`,
		"e": `key "m"`,
	} {
		_, err := s.Get(t.Context(), server, key)
		require.ErrorContains(t, err, "ConfigMap prebind-system/test-"+key+": "+want)
		assert.ErrorContains(t, s.Update(t.Context(), key, increment), want)
	}
	versions, err := s.List(t.Context(), server, "")
	require.ErrorContains(t, err, "cannot be decoded")
	assert.Len(t, versions, 2, "List returns the records z and d")
}

func TestUnmarshal(t *testing.T) {
	type inner struct {
		Values map[string]string `json:"values"`
	}
	type outer struct {
		Name  string  `json:"name"`
		Inner []inner `json:"inner"`
	}
	for name, tc := range map[string]struct {
		reason, text, want string
	}{
		"Complete":   {reason: "Unmarshal is the reverse of Marshal", text: `{"name":"a","inner":[{"values":{"x":"<&>","X":""}}]}`},
		"Behind":     {reason: "text after the value would be lost", text: `{"name":"a"}{}`, want: "after top-level value"},
		"Unknown":    {reason: "a later version wrote it", text: `{"name":"a","since":1}`, want: `unknown field "since"`},
		"Twice":      {reason: "one of them would be lost", text: `{"name":"a","name":"b"}`, want: "duplicate field"},
		"TwiceUpper": {reason: "keys are case-sensitive", text: `{"name":"a","Name":"b"}`, want: "unknown field"},
		"TwiceDeep":  {reason: "one of them would be lost", text: `{"inner":[{"values":{"x":"1","\u0078":"2"}}]}`, want: "duplicate field"},
		"CutOff":     {reason: "the value is incomplete", text: `{"name":"a"`, want: "unexpected end of JSON input"},
	} {
		t.Run(name, func(t *testing.T) {
			var o outer
			err := Unmarshal(tc.text, &o)
			if tc.want != "" {
				require.ErrorContains(t, err, tc.want, tc.reason)
				return
			}
			require.NoError(t, err, tc.reason)
			again, err := Marshal(o)
			require.NoError(t, err)
			assert.Contains(t, again, "<&>", "operators read the text, so it is not escaped")
		})
	}
}
