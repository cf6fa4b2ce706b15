// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/prebind/prebind/binder"
)

// operation is an "add" operation of a JSON patch, which also replaces values in objects.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

var escape = strings.NewReplacer("~", "~0", "/", "~1")

// patchFor returns the smallest patch that adds the annotations, labels, UID and resourceVersion of the decision. It omits keys that
// already have the same value. It is nil if there is nothing to add. The API server always sends the metadata of a Binding.
func patchFor(b *corev1.Binding, d binder.Decision) []byte {
	var patch []operation
	if d.UID != "" {
		patch = append(patch, operation{"add", "/metadata/uid", d.UID})
	}
	if d.ResourceVersion != "" {
		patch = append(patch, operation{"add", "/metadata/resourceVersion", d.ResourceVersion})
	}
	patch = append(patch, additions("/metadata/annotations", b.Annotations, d.Annotations)...)
	patch = append(patch, additions("/metadata/labels", b.Labels, d.Labels)...)
	if len(patch) == 0 {
		return nil
	}
	encoded, _ := json.Marshal(patch) // Encoding strings and maps of strings cannot fail.
	return encoded
}

// additions returns the operations that add the entries of want that differ from had. A map that does not exist is added as a whole.
func additions(path string, had, want map[string]string) []operation {
	if len(want) == 0 {
		return nil
	}
	if had == nil {
		return []operation{{"add", path, want}}
	}
	var all []operation
	for _, key := range slices.Sorted(maps.Keys(want)) {
		if value, ok := had[key]; !ok || value != want[key] {
			all = append(all, operation{"add", path + "/" + escape.Replace(key), want[key]})
		}
	}
	return all
}
