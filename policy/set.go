// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"slices"
	"strconv"
	"strings"
)

// Set is a set of compiled policies. It is immutable. The zero value is empty.
type Set struct{ policies []*Compiled }

// NewSet returns a set with the policies, sorted by name.
func NewSet(policies []*Compiled) *Set {
	sorted := slices.Clone(policies)
	slices.SortStableFunc(sorted, func(a, b *Compiled) int { return strings.Compare(a.name, b.name) })
	return &Set{policies: sorted}
}

// All returns the policies sorted by name. Do not change the result.
func (s *Set) All() []*Compiled {
	if s == nil {
		return nil
	}
	return s.policies
}

// Needs returns what the policies read together. Resources with the same Key are one, with the fields of all.
// Their Name is that of the first.
func (s *Set) Needs() Needs {
	var merged Needs
	index := map[string]int{}
	for _, c := range s.All() {
		n := &c.needs
		merged.Namespace = merged.Namespace.Union(n.Namespace)
		merged.Claims = merged.Claims.Union(n.Claims)
		for _, r := range n.Resources {
			key := r.Key()
			i, ok := index[key]
			if !ok {
				index[key] = len(merged.Resources)
				merged.Resources = append(merged.Resources, r)
				continue
			}
			both := *merged.Resources[i]
			both.Fields = both.Fields.Union(r.Fields)
			merged.Resources[i] = &both
		}
	}
	return merged
}

// Key returns a text that is the same for resources with the same objects: the same kind, namespace, selectors,
// and way of reading them. It does not contain the fields.
func (r *Resource) Key() string {
	labels := ""
	if r.Labels != nil {
		labels = r.Labels.String()
	}
	how := "all"
	switch {
	case r.ByName:
		how = "name"
		if r.Constant != "" {
			how += " " + strconv.Quote(r.Constant)
		}
	case r.OnNode:
		how = "node"
	}
	return strings.Join([]string{r.Kind.GroupVersion().String(), r.Kind.Kind, r.Namespace, how, strconv.Quote(labels)}, "|")
}
