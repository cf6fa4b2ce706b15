// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package keys validates short keys and parses the entries that select values to copy.
package keys

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// MaxLength is the maximum length of a short key and of a label value in the API server.
const MaxLength = 63

// Valid reports whether the short key, after a valid prefix and a slash, is a valid key of
// annotations and labels.
func Valid(short string) bool {
	return !strings.Contains(short, "/") && len(validation.IsQualifiedName(short)) == 0
}

// Source is the kind of value that a mutator copies from a node.
type Source string

const (
	// Label is a label of the node.
	Label Source = "label"
	// Annotation is an annotation of the node.
	Annotation Source = "annotation"
)

// Copy is the key of a node's label or annotation, and the short key of its copy. Both are valid.
type Copy struct{ From, Key string }

// Parse parses entries of the form "name" or "name=key". The default key is the part of the name
// after the slash. Two entries with the same key are an error.
func Parse(source Source, entries []string) ([]Copy, error) {
	var copies []Copy
	byKey := map[string]string{}
	for _, entry := range entries {
		c, err := parse(source, entry)
		if err != nil {
			return nil, err
		}
		if other, taken := byKey[c.Key]; taken {
			return nil, fmt.Errorf("node %ss %q and %q have the same key %q: set another key, such as %s=other-key",
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
		// The API server accepts upper case in the prefix of an annotation key.
		name = strings.ToLower(from)
	}
	if problems := validation.IsQualifiedName(name); len(problems) > 0 {
		return Copy{}, fmt.Errorf("%q: invalid %s key %q: %s", entry, source, from, strings.Join(problems, "; "))
	}
	if !named {
		key = Behind(from)
	}
	if !Valid(key) {
		return Copy{}, fmt.Errorf("%q: invalid key %q: use up to %d letters, digits, '-', '_', and '.', without a prefix",
			entry, key, MaxLength)
	}
	return Copy{From: from, Key: key}, nil
}

// Behind returns the part of a name after its last slash, or the whole name.
func Behind(name string) string { return name[strings.LastIndexByte(name, '/')+1:] }
