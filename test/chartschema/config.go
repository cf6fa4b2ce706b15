// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/prebind/prebind/binder/plugins/nodeready"
	"github.com/prebind/prebind/cmd/prebind/app"
	"github.com/prebind/prebind/internal/configuration"
)

// durationPattern matches the durations that time.ParseDuration accepts.
const durationPattern = `^[+-]?(0|([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h))+$`

// configSchema returns the schema of the configuration file. It is that of the file that 'prebind config defaults' prints, with an element in each
// list of objects.
func configSchema() (map[string]any, error) {
	registry := &configuration.Registry{Mutators: app.RegisteredMutators(), Plugins: app.RegisteredPlugins()}
	c := configuration.Default(registry)
	c.Namespaces = []configuration.NamespaceRule{{}}
	if ready, ok := c.Arguments.Of(nodeready.Name).(*nodeready.Arguments); ok {
		ready.Agents = []nodeready.Agent{{NodeSelector: "any"}} // Empty, the field is omitted.
	}
	file, err := c.Encode()
	if err != nil {
		return nil, err
	}
	var document yaml.Node
	if err := yaml.Unmarshal(file, &document); err != nil {
		return nil, err
	}
	schema, err := fieldSchema("", document.Content[0])
	if err != nil {
		return nil, err
	}
	schema["required"] = []string{"apiVersion", "kind"}
	return schema, nil
}

// fieldSchema returns the schema of a field with this value.
func fieldSchema(name string, value *yaml.Node) (map[string]any, error) {
	switch {
	case name == "apiVersion" || name == "kind":
		return map[string]any{"const": value.Value}, nil
	case name == "mode":
		return map[string]any{"enum": configuration.Modes()}, nil
	case value.Kind == yaml.MappingNode:
		properties := map[string]any{}
		for pair := range slices.Chunk(value.Content, 2) {
			field, err := fieldSchema(pair[0].Value, pair[1])
			if err != nil {
				return nil, err
			}
			if text := pair[0].HeadComment; text != "" {
				field["description"] = strings.ReplaceAll(strings.TrimPrefix(text, "# "), "\n# ", " ")
			}
			properties[pair[0].Value] = field
		}
		return map[string]any{"type": "object", "additionalProperties": false, "properties": properties}, nil
	case value.Kind == yaml.SequenceNode && len(value.Content) > 0:
		items, err := fieldSchema("", value.Content[0])
		return map[string]any{"type": "array", "items": items}, err
	}
	schema, err := schemaOf(name, value)
	if _, invalid := time.ParseDuration(value.Value); value.Tag == "!!str" && invalid == nil {
		schema["pattern"] = durationPattern
	}
	return schema, err
}
