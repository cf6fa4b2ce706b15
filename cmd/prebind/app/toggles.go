// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"fmt"
	"slices"
	"strings"
)

// entry is what a toggle needs to know of a mutator or plugin.
type entry struct {
	name string
	on   bool
}

// selected returns those of the list that the flag switches on, in the list's
// order. The flag has the form of --controllers of kube-controller-manager: '*'
// stands for all that are on by default, 'x' switches x on, '-x' off, and what
// names x outweighs '*'. An unknown name is an error that lists the known ones.
func selected[T any](list []T, entryOf func(T) entry, what string, flag []string) ([]T, error) {
	var known []string
	for _, s := range list {
		known = append(known, entryOf(s).name)
	}
	for _, f := range flag {
		if name := strings.TrimPrefix(f, "-"); f != "*" && !slices.Contains(known, name) {
			return nil, fmt.Errorf("there is no %s %q: the known ones are %s", what, name, strings.Join(known, ", "))
		}
	}
	var on []T
	for _, s := range list {
		e := entryOf(s)
		named, off := slices.Contains(flag, e.name), slices.Contains(flag, "-"+e.name)
		switch {
		case named && off:
			return nil, fmt.Errorf("the %s %q is switched both on and off", what, e.name)
		case named, !off && e.on && slices.Contains(flag, "*"):
			on = append(on, s)
		}
	}
	return on, nil
}
