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
	if b.has.Metadata == nil && (d.UID != "" || len(d.Annotations) > 0) {
		add("/metadata", struct{}{})
	}
	if d.UID != "" {
		add("/metadata/uid", d.UID)
	}
	if had := b.request.Binding.Annotations; b.has.Metadata == nil || b.has.Metadata.Annotations == nil {
		if len(d.Annotations) > 0 {
			add("/metadata/annotations", d.Annotations)
		}
	} else {
		for _, key := range slices.Sorted(maps.Keys(d.Annotations)) {
			if value, ok := had[key]; !ok || value != d.Annotations[key] {
				add("/metadata/annotations/"+escape.Replace(key), d.Annotations[key])
			}
		}
	}
	if len(patch) == 0 {
		return nil, nil
	}
	encoded, err := json.Marshal(patch)
	if err != nil {
		return nil, fmt.Errorf("encoding the patch: %w", err)
	}
	return encoded, nil
}
