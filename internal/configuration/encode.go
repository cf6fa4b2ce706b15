// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package configuration

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Encode returns the configuration as a file that describes each field.
func (c *PrebindConfiguration) Encode() ([]byte, error) {
	var document yaml.Node
	encoded, err := json.Marshal(c)
	if err == nil {
		err = yaml.Unmarshal(encoded, &document) // Every JSON document is YAML.
	}
	if err != nil {
		return nil, fmt.Errorf("encoding the configuration: %w", err)
	}
	format(document.Content[0], "", c.usage())
	var out bytes.Buffer
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(2)
	if err := encoder.Encode(&document); err != nil {
		return nil, fmt.Errorf("encoding the configuration: %w", err)
	}
	return out.Bytes(), nil
}

// format adds the usage above each field, and removes the style of JSON. JSON has null for a nil slice.
func format(at *yaml.Node, prefix string, help usage) {
	at.Style = 0
	if at.Tag == "!!null" {
		*at = yaml.Node{Kind: yaml.SequenceNode}
	}
	for i, child := range at.Content {
		switch {
		case at.Kind != yaml.MappingNode:
			format(child, prefix+"[].", help)
		case i%2 == 0:
			format(child, prefix, help)
			child.HeadComment = wrapped(help(prefix+child.Value), 100)
		default:
			format(child, prefix+at.Content[i-1].Value+".", help)
		}
	}
}

// wrapped splits the text into lines of about the given width.
func wrapped(text string, width int) string {
	var out strings.Builder
	length := 0
	for word := range strings.FieldsSeq(text) {
		switch {
		case length == 0:
		case length+1+len(word) > width:
			out.WriteByte('\n')
			length = 0
		default:
			out.WriteByte(' ')
			length++
		}
		out.WriteString(word)
		length += len(word)
	}
	return out.String()
}
