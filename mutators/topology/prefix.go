// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/prebind/prebind/mutators/internal/keys"
)

// prefix is an entry with a star. It matches every label with the prefix.
type prefix struct {
	begin string
	// named means that the entry has a key. before and after are the parts around its star.
	named         bool
	before, after string
}

func parsePrefix(entry string) (prefix, error) {
	label, key, named := strings.Cut(entry, "=")
	begin, rest, _ := strings.Cut(label, "*")
	if rest != "" {
		return prefix{}, fmt.Errorf("%q: '*' must be at the end of the label, such as %s*", entry, begin)
	}
	if !begins(begin) {
		return prefix{}, fmt.Errorf("%q: no label can begin with %q: use a prefix such as example.com/* or example.com/net-*", entry, begin)
	}
	if !named {
		return prefix{begin: begin}, nil
	}
	before, after, star := strings.Cut(key, "*")
	if !star {
		return prefix{}, fmt.Errorf("%q: all labels would get the key %q: add '*' for the rest of the label, such as %s=key-*",
			entry, key, label)
	}
	if !keys.Valid(before + "x" + after) {
		return prefix{}, fmt.Errorf("%q: invalid key %q: use up to %d letters, digits, '-', '_', '.', and one '*', without a prefix",
			entry, key, keys.MaxLength)
	}
	return prefix{begin: begin, named: true, before: before, after: after}, nil
}

// begins reports whether a valid label key can begin with the string.
func begins(begin string) bool {
	return len(validation.IsQualifiedName(begin+"x")) == 0 ||
		!strings.Contains(begin, "/") && len(validation.IsQualifiedName(begin+"x/x")) == 0
}

// key returns the label's key. ok is false if the label does not match or the key is invalid.
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
