// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package keys holds what the mutators share: which short keys are valid, and
// the entries by which an operator names what to copy and the key it becomes.
package keys

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// MaxLength of a short key and of a label value, as the API server has it.
const MaxLength = 63

// Valid says whether the short key, put behind a valid prefix and a slash, is a
// valid key of an annotation and of a label. It agrees with
// validation.IsQualifiedName for keys without a slash, but allocates nothing: it
// runs for every key of every bind.
func Valid(short string) bool {
	if short == "" || len(short) > MaxLength || !Alphanumeric(short[0]) || !Alphanumeric(short[len(short)-1]) {
		return false
	}
	for i := range len(short) {
		if c := short[i]; !Alphanumeric(c) && c != '-' && c != '_' && c != '.' {
			return false
		}
	}
	return true
}

// ValidLabelValue says whether the API server takes the value for a label. It
// agrees with validation.IsValidLabelValue.
func ValidLabelValue(value string) bool { return value == "" || Valid(value) }

// Alphanumeric says whether a key may begin and end with the character.
func Alphanumeric(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

// Source is where a mutator copies from. Errors call it so.
type Source string

const (
	// Label is a label of the node.
	Label Source = "label"
	// Annotation is an annotation of the node.
	Annotation Source = "annotation"
)

// Copy is one entry: the node's label or annotation, and the short key that its
// value gets. Both are valid.
type Copy struct{ From, Key string }

// Parse reads entries of the form "name" or "name=key" in their order. Without a
// key it is the part of the name behind the slash. Two entries with one key are
// an error.
func Parse(source Source, entries []string) ([]Copy, error) {
	var copies []Copy
	byKey := map[string]string{}
	for _, entry := range entries {
		c, err := parse(source, entry)
		if err != nil {
			return nil, err
		}
		if other, taken := byKey[c.Key]; taken {
			return nil, fmt.Errorf("node %ss %q and %q would both become the key %q: give one of them another, as in %s=other-key",
				source, other, c.From, c.Key, c.From)
		}
		byKey[c.Key] = c.From
		copies = append(copies, c)
	}
	return copies, nil
}

func parse(source Source, entry string) (Copy, error) {
	from, key, named := strings.Cut(entry, "=")
	name := from
	if source == Annotation {
		// The API server is less strict about the prefix of an annotation.
		name = strings.ToLower(from)
	}
	if problems := validation.IsQualifiedName(name); len(problems) > 0 {
		return Copy{}, fmt.Errorf("%q: %q is no %s key: %s", entry, from, source, strings.Join(problems, "; "))
	}
	if !named {
		key = Behind(from)
	}
	if !Valid(key) {
		return Copy{}, fmt.Errorf("%q: %q is no annotation key without prefix: use letters, digits, '-', '_' and '.', %d at most",
			entry, key, MaxLength)
	}
	return Copy{From: from, Key: key}, nil
}

// Behind is the part of a name behind its last slash, or all of it.
func Behind(name string) string { return name[strings.LastIndexByte(name, '/')+1:] }
