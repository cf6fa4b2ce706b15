// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/prebind/prebind/binder"
)

// operation is one "add" of a JSON patch. In an object, "add" also replaces.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

var escape = strings.NewReplacer("~", "~0", "/", "~1")

// patchFor is the smallest patch that sets what the decision adds: no other key
// is named in it, and what the Binding has already is left out. It is nil when
// nothing is to be set.
func patchFor(b *bind, d binder.Decision) ([]byte, error) {
	var patch []operation
	add := func(path string, value any) {
		patch = append(patch, operation{Op: "add", Path: path, Value: value})
	}
	if b.has.Metadata == nil && (d.UID != "" || len(d.Annotations) > 0 || len(d.Labels) > 0) {
		add("/metadata", struct{}{})
	}
	if d.UID != "" {
		add("/metadata/uid", d.UID)
	}
	addMap := func(path string, exists bool, had, want map[string]string) {
		if !exists && len(want) > 0 {
			add(path, want)
			return
		}
		for _, key := range slices.Sorted(maps.Keys(want)) {
			if value, ok := had[key]; !ok || value != want[key] {
				add(path+"/"+escape.Replace(key), want[key])
			}
		}
	}
	binding, has := b.request.Binding, b.has.Metadata
	addMap("/metadata/annotations", has != nil && has.Annotations != nil, binding.Annotations, d.Annotations)
	addMap("/metadata/labels", has != nil && has.Labels != nil, binding.Labels, d.Labels)
	if len(patch) == 0 {
		return nil, nil
	}
	encoded, err := json.Marshal(patch)
	if err != nil {
		return nil, fmt.Errorf("encoding the patch: %w", err)
	}
	return encoded, nil
}
