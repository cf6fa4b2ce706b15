// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"strconv"
	"strings"
)

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
