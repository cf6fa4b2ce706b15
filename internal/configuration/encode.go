// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package configuration

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/pflag"
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
	format(document.Content[0], "", c.ownFlags())
	var out bytes.Buffer
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(2)
	if err := encoder.Encode(&document); err != nil {
		return nil, fmt.Errorf("encoding the configuration: %w", err)
	}
	return out.Bytes(), nil
}

// format adds the usage above each field, with a line for each sentence, and removes the style of JSON. JSON has null for a nil slice.
func format(at *yaml.Node, prefix string, own *pflag.FlagSet) {
	at.Style = 0
	if at.Tag == "!!null" {
		*at = yaml.Node{Kind: yaml.SequenceNode}
	}
	for i, child := range at.Content {
		switch {
		case at.Kind != yaml.MappingNode:
			format(child, prefix+"[].", own)
		case i%2 == 0:
			format(child, prefix, own)
			child.HeadComment = strings.ReplaceAll(usage(own, prefix+child.Value), ". ", ".\n")
		default:
			format(child, prefix+at.Content[i-1].Value+".", own)
		}
	}
}
