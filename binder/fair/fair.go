// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package fair distributes limited work among tenants.
package fair

// Interleave returns the items in an order in which their groups take turns: the first item of
// each group, then the second of each, and so on. Groups are in the order of their first items,
// and the items of a group keep their order. The caller owns the result. The cost is linear.
func Interleave[T any](items []T, group func(T) string) []T {
	var groups [][]T
	position := map[string]int{}
	for _, item := range items {
		name := group(item)
		at, ok := position[name]
		if !ok {
			at = len(groups)
			position[name], groups = at, append(groups, nil)
		}
		groups[at] = append(groups[at], item)
	}
	all := make([]T, 0, len(items))
	for len(groups) > 0 {
		left := groups[:0]
		for _, g := range groups {
			all = append(all, g[0])
			if len(g) > 1 {
				left = append(left, g[1:])
			}
		}
		groups = left
	}
	return all
}
