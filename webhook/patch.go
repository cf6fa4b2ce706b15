// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/prebind/prebind/binder"
)

// opAdd is the operation that adds a value, or replaces the value of an object.
const opAdd = "add"

// operation is one of a JSON patch, see RFC 6902. That of the library encodes itself with several calls of encoding/json, which takes more
// time than all mutators.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// patchFor returns the smallest patch that adds the annotations, labels, UID and resourceVersion of the decision. It omits keys
// that already have the same value. The Binding of an API server always has metadata.
func patchFor(b *corev1.Binding, d binder.Decision) []operation {
	var all []operation
	if d.UID != "" {
		all = append(all, operation{Op: opAdd, Path: "/metadata/uid", Value: d.UID})
	}
	if d.ResourceVersion != "" {
		all = append(all, operation{Op: opAdd, Path: "/metadata/resourceVersion", Value: d.ResourceVersion})
	}
	all = append(all, addMap("/metadata/annotations", b.Annotations, d.Annotations)...)
	return append(all, addMap("/metadata/labels", b.Labels, d.Labels)...)
}

var escape = strings.NewReplacer("~", "~0", "/", "~1")

// addMap adds the entries of want that differ from had. If the map does not exist, addMap adds the whole map.
func addMap(path string, had, want map[string]string) []operation {
	if len(want) == 0 {
		return nil
	}
	if had == nil {
		return []operation{{Op: opAdd, Path: path, Value: want}}
	}
	var all []operation
	for _, key := range slices.Sorted(maps.Keys(want)) {
		if value, ok := had[key]; !ok || value != want[key] {
			all = append(all, operation{Op: opAdd, Path: path + "/" + escape.Replace(key), Value: want[key]})
		}
	}
	return all
}
