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

var escape = strings.NewReplacer("~", "~0", "/", "~1")

// patchFor returns the smallest patch that adds the annotations, labels, UID and resourceVersion of the decision. It omits keys that already
// have the same value. It is nil if there is nothing to add.
func patchFor(b *bind, d binder.Decision) []byte {
	var p patch
	if !b.has.metadata && (d.UID != "" || d.ResourceVersion != "" || len(d.Annotations) > 0 || len(d.Labels) > 0) {
		p.add("/metadata")
		p = append(p, "{}"...)
	}
	if d.UID != "" {
		p.add("/metadata/uid")
		p.text(string(d.UID))
	}
	if d.ResourceVersion != "" {
		p.add("/metadata/resourceVersion")
		p.text(d.ResourceVersion)
	}
	p.addMap("/metadata/annotations", b.has.annotations, b.request.Binding.Annotations, d.Annotations)
	p.addMap("/metadata/labels", b.has.labels, b.request.Binding.Labels, d.Labels)
	return p.close()
}

// patch builds a JSON patch of "add" operations, which also replace values in objects. It writes text, because that needs
// less CPU time than encoding.
type patch []byte

// add begins an operation. The caller appends the value. The optional key is escaped and appended to the path.
func (p *patch) add(path string, key ...string) {
	if len(*p) == 0 {
		*p = append(*p, '[')
	} else {
		*p = append(*p, "},"...)
	}
	for _, k := range key {
		path += "/" + escape.Replace(k)
	}
	*p = append(*p, `{"op":"add","path":`...)
	p.text(path)
	*p = append(*p, `,"value":`...)
}

// addMap adds the entries of want that differ from had. If the map does not exist, addMap adds the whole map.
func (p *patch) addMap(path string, exists bool, had, want map[string]string) {
	if len(want) == 0 {
		return
	}
	keys := slices.AppendSeq(make([]string, 0, len(want)), maps.Keys(want))
	slices.Sort(keys)
	if exists {
		for _, key := range keys {
			if value, ok := had[key]; !ok || value != want[key] {
				p.add(path, key)
				p.text(want[key])
			}
		}
		return
	}
	p.add(path)
	*p = append(*p, '{')
	for i, key := range keys {
		if i > 0 {
			*p = append(*p, ',')
		}
		p.text(key)
		*p = append(*p, ':')
		p.text(want[key])
	}
	*p = append(*p, '}')
}

// close returns the patch, or nil if it has no operations.
func (p patch) close() []byte {
	if len(p) == 0 {
		return nil
	}
	return append(p, "}]"...)
}

// text appends a JSON string.
func (p *patch) text(s string) {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			encoded, _ := json.Marshal(s) // Encoding a string cannot fail.
			*p = append(*p, encoded...)
			return
		}
	}
	*p = append(append(append(*p, '"'), s...), '"')
}
