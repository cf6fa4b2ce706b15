// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/prebind/prebind/binder"
)

// operation is an operation of a JSON patch. Prebind only uses "add", which also replaces values in objects.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

func add(path string, value any) operation { return operation{Op: "add", Path: path, Value: value} }

// patchFor returns the smallest patch that adds the annotations, labels, UID and resourceVersion of the decision. It omits keys that already
// have the same value. It is nil if there is nothing to add.
func patchFor(b *bind, d binder.Decision) []byte {
	var all []operation
	if d.UID != "" {
		all = append(all, add("/metadata/uid", d.UID))
	}
	if d.ResourceVersion != "" {
		all = append(all, add("/metadata/resourceVersion", d.ResourceVersion))
	}
	all = append(all, addMap("/metadata/annotations", b.has.annotations, b.request.Binding.Annotations, d.Annotations)...)
	all = append(all, addMap("/metadata/labels", b.has.labels, b.request.Binding.Labels, d.Labels)...)
	if len(all) == 0 {
		return nil
	}
	if !b.has.metadata {
		all = slices.Insert(all, 0, add("/metadata", struct{}{}))
	}
	encoded, _ := json.Marshal(all) // Encoding strings cannot fail.
	return encoded
}

var escape = strings.NewReplacer("~", "~0", "/", "~1")

// addMap adds the entries of want that differ from had. If the map does not exist, addMap adds the whole map.
func addMap(path string, exists bool, had, want map[string]string) []operation {
	if len(want) == 0 {
		return nil
	}
	if !exists {
		return []operation{add(path, want)}
	}
	var all []operation
	for _, key := range slices.Sorted(maps.Keys(want)) {
		if value, ok := had[key]; !ok || value != want[key] {
			all = append(all, add(path+"/"+escape.Replace(key), want[key]))
		}
	}
	return all
}
