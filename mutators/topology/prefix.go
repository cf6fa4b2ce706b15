// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/prebind/prebind/mutators/internal/keys"
)

// prefix is an entry with a star: it stands for every label that begins so.
type prefix struct {
	begin string
	// named says that the entry has a key; before and after are the parts of it
	// around the star.
	named         bool
	before, after string
}

func parsePrefix(entry string) (prefix, error) {
	label, key, named := strings.Cut(entry, "=")
	begin, rest, _ := strings.Cut(label, "*")
	if rest != "" {
		return prefix{}, fmt.Errorf("%q: a '*' ends a label: write what the labels begin with, as in %s*", entry, begin)
	}
	if !begins(begin) {
		return prefix{}, fmt.Errorf("%q: no label begins with %q: write as in example.com/* or example.com/net-*", entry, begin)
	}
	if !named {
		return prefix{begin: begin}, nil
	}
	before, after, star := strings.Cut(key, "*")
	if !star {
		return prefix{}, fmt.Errorf("%q: all of the labels would become the key %q: put a '*' where the rest of the label is to stand, as in %s=key-*",
			entry, key, label)
	}
	if !keys.Valid(before + "x" + after) {
		return prefix{}, fmt.Errorf("%q: %q makes no annotation keys without prefix: use letters, digits, '-', '_', '.' and one '*', %d at most",
			entry, key, keys.MaxLength)
	}
	return prefix{begin: begin, named: true, before: before, after: after}, nil
}

// begins says whether some valid label begins so: with one more letter it is a
// label, or else the beginning of a label's own prefix.
func begins(begin string) bool {
	return len(validation.IsQualifiedName(begin+"x")) == 0 ||
		!strings.Contains(begin, "/") && len(validation.IsQualifiedName(begin+"x/x")) == 0
}

// key is the label's key by this entry. It is not ok for a label that does not
// begin so, or whose rest makes no valid key.
func (p *prefix) key(label string) (key string, ok bool) {
	rest, matches := strings.CutPrefix(label, p.begin)
	if !matches {
		return "", false
	}
	if p.named {
		key = p.before + rest + p.after
	} else {
		key = keys.Behind(label)
	}
	return key, keys.Valid(key)
}

// canGive says whether some label's key by this entry is this one.
func (p *prefix) canGive(key string) bool {
	if !keys.Valid(key) {
		return false
	}
	if p.named {
		return len(key) >= len(p.before)+len(p.after) && strings.HasPrefix(key, p.before) && strings.HasSuffix(key, p.after)
	}
	// Without a slash the star covers the label's own prefix and with it any key:
	// begin is then empty.
	_, begin, _ := strings.Cut(p.begin, "/")
	return strings.HasPrefix(key, begin)
}
