// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package keys

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestParse(t *testing.T) {
	for name, tc := range map[string]struct {
		reason  string
		source  Source
		entries []string
		want    []Copy
		// says is part of the error. It is empty for no error.
		says string
	}{
		"NoPrefix":   {reason: "a name without a slash is its own key", entries: []string{"rack"}, want: []Copy{{"rack", "rack"}}},
		"SameTwice":  {reason: "a name can have two keys", entries: []string{"example.com/rack", "example.com/rack=row"}, want: []Copy{{"example.com/rack", "rack"}, {"example.com/rack", "row"}}},
		"LongestKey": {reason: "63 characters are allowed", entries: []string{"rack=" + strings.Repeat("a", 63)}, want: []Copy{{"rack", strings.Repeat("a", 63)}}},
		"Annotation": {reason: "the API server accepts upper case in the prefix of an annotation", source: Annotation, entries: []string{"Example.COM/Rack"}, want: []Copy{{"Example.COM/Rack", "Rack"}}},
		"LabelCase":  {reason: "the API server rejects upper case in the prefix of a label", source: Label, entries: []string{"Example.COM/Rack"}, says: "invalid label key"},
		"Duplicate":  {reason: "two names cannot have the same key", source: Label, entries: []string{"a.example/rack", "b.example/rack"}, says: `node labels "a.example/rack" and "b.example/rack" have the same key "rack": set another key, such as b.example/rack=other-key`},
		"KeyPrefix":  {reason: "a key must not have a prefix", entries: []string{"rack=example.com/rack"}, says: "without a prefix"},
		"LongKey":    {reason: "a key has at most 63 characters", entries: []string{"rack=" + strings.Repeat("a", 64)}, says: "63"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Parse(tc.source, tc.entries)
			if tc.says != "" {
				require.ErrorContains(t, err, tc.says, tc.reason)
				assert.NotContains(t, err.Error(), "\n")
				return
			}
			require.NoError(t, err, tc.reason)
			assert.Equal(t, tc.want, got, tc.reason)
		})
	}
}
