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

// patchFor is the smallest patch that sets what the decision adds: no other key
// is named in it, and what the Binding has already is left out. It is nil when
// nothing is to be set.
func patchFor(b *bind, d binder.Decision) []byte {
	var p patch
	if !b.has.metadata && (d.UID != "" || len(d.Annotations) > 0 || len(d.Labels) > 0) {
		p.add("/metadata")
		p = append(p, "{}"...)
	}
	if d.UID != "" {
		p.add("/metadata/uid")
		p.text(string(d.UID))
	}
	p.addMap("/metadata/annotations", b.has.annotations, b.request.Binding.Annotations, d.Annotations)
	p.addMap("/metadata/labels", b.has.labels, b.request.Binding.Labels, d.Labels)
	return p.close()
}

// patch is a JSON patch in the making, of "add" operations only: in an object, "add"
// also replaces. It is written as text, for it is written for every bind.
type patch []byte

// add begins an operation, whose value has to be appended. The prefix is as it is,
// and the key, if there is one, is escaped.
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

// addMap adds what of the map is wanted and not had: the whole of it where there is
// no map yet.
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

// close returns the patch; nil where nothing was added.
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
			encoded, _ := json.Marshal(s) // A string can always be encoded.
			*p = append(*p, encoded...)
			return
		}
	}
	*p = append(append(append(*p, '"'), s...), '"')
}
