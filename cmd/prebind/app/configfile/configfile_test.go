// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package configfile

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

type inner struct {
	Wait  time.Duration `yaml:"wait"`
	Count int           `yaml:"count"`
	On    bool          `yaml:"on"`
}

type rule struct {
	Names []string `yaml:"names"`
}

type document struct {
	Header `yaml:",inline"`
	Inner  inner  `yaml:"inner"`
	Rules  []rule `yaml:"rules"`
	Word   string `yaml:"word"`
}

var want = Header{APIVersion: "test/v1", Kind: "Test"}

const head = "apiVersion: test/v1\nkind: Test\n"

func TestDecode(t *testing.T) {
	d := document{Inner: inner{Wait: time.Minute, Count: 7}, Rules: []rule{{Names: []string{"default"}}}, Word: "kept"}
	f, err := Decode("file", []byte(head+"inner:\n  count: 3\nrules:\n- names: [a, b]\n- names: []\n"), want, &d)
	require.NoError(t, err)
	assert.Equal(t, document{
		Header: want, Inner: inner{Wait: time.Minute, Count: 3}, Rules: []rule{{Names: []string{"a", "b"}}, {Names: []string{}}}, Word: "kept",
	}, d, "what is not given stays, and a list is given as a whole")

	assert.True(t, f.Has("inner.count"))
	assert.False(t, f.Has("inner.wait"))
	no := errors.New("no")
	for path, says := range map[string]string{
		"inner.count":    "file:4: no",
		"inner.wait":     "file:3: no",
		"rules[1].names": "file:7: no",
		"rules[5].names": "file:5: no",
		"word":           "file: no",
	} {
		err := f.At(path, no)
		require.EqualError(t, err, says, path)
		assert.ErrorIs(t, err, no)
	}
}

func TestDecodeSaysWhatIsWrong(t *testing.T) {
	cases := map[string]struct {
		reason, content string
		want            []string
	}{
		"Empty":        {reason: "nothing is no configuration", want: []string{`file: it is a "" of "", this program reads a Test of test/v1`}},
		"OtherVersion": {reason: "fields of another version mean something else", content: "apiVersion: test/v2\nkind: Test\nfoo: 1\n", want: []string{`file:1: it is a "Test" of "test/v2", this program reads a Test of test/v1`}},
		"NoYAML":       {reason: "the line is named", content: head + "inner:\n\twait: 1s\n", want: []string{"file:4: it is no YAML: found character that cannot start any token"}},
		"Unknown":      {reason: "the known fields are listed", content: head + "inner:\n  wiat: 1s\n", want: []string{`file:4: there is no field "wiat": the known ones are wait, count, on`}},
		"UnknownOnTop": {reason: "those of inlined structs are among them", content: head + "colour: red\n", want: []string{`file:3: there is no field "colour": the known ones are apiVersion, kind, inner, rules, word`}},
		"UnknownInList": {
			reason: "also in the elements of a list", content: head + "rules:\n- names: []\n  mode: x\n",
			want: []string{`file:5: there is no field "mode": the known ones are names`},
		},
		"Twice":     {reason: "one of the two would be lost", content: head + "word: a\nword: b\n", want: []string{`file:4: the field "word" is given twice, first in line 3`}},
		"Duration":  {reason: "a duration has a unit", content: head + "inner: {wait: 5}\n", want: []string{`file:3: it is "5", and must be a duration such as 90s or 5m`}},
		"Number":    {reason: "so must a number be one", content: head + "inner: {count: many}\n", want: []string{`file:3: it is "many", and must be a whole number`}},
		"Bool":      {reason: "so must a bool", content: head + "inner: {on: maybe}\n", want: []string{`file:3: it is "maybe", and must be true or false`}},
		"List":      {reason: "a word is no list", content: head + "rules:\n- names: a\n", want: []string{`file:4: it is "a", and must be a list of words`}},
		"Map":       {reason: "a list is no map", content: head + "inner: [a]\n", want: []string{"file:3: it is a list, and must be a map of fields"}},
		"Documents": {reason: "the second would be lost", content: head + "---\n" + head, want: []string{"file: it has more than one document, one is read"}},
		"Several": {
			reason: "everything is told at once", content: head + "inner: {count: many}\ncolour: red\n",
			want: []string{`file:3: it is "many", and must be a whole number`, `file:4: there is no field "colour": the known ones are apiVersion, kind, inner, rules, word`},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := Decode("file", []byte(tc.content), want, &document{})
			require.Error(t, err, tc.reason)
			assert.ElementsMatch(t, tc.want, strings.Split(err.Error(), "\n"), tc.reason)
		})
	}
}

// FuzzDecode: no content makes it panic, and every error is of whole lines that
// name the file.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{"", head, head + "inner: {count: many}\n", head + "rules:\n- names: [a]\n", "{", "\t", "a: &a [*a]", "? {a: b}\n: c", head + "word: !!binary x\n", "\xff"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		file, err := Decode("file", content, want, &document{})
		if err == nil {
			assert.True(t, file.Has("kind"))
			return
		}
		for line := range strings.SplitSeq(err.Error(), "\n") {
			assert.True(t, strings.HasPrefix(line, "file:"), line)
		}
	})
}
