// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Command chartschema prints the JSON schema of the configuration file or, with the path of a values.yaml, that of a chart's values. The value
// config has the schema of the configuration file. The schema of the others is generated from values.yaml: the comments of helm-docs are the
// descriptions, and a line with @schema before them adds what the default value does not show.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"strings"

	"go.yaml.in/yaml/v3"
	sigsyaml "sigs.k8s.io/yaml"
)

const (
	descriptionMark = "# -- "
	schemaMark      = "# @schema "
	// defaultMark begins the text for a long default in README.md.
	defaultMark = "# @default -- "
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	schema, err := configSchema()
	if err == nil && len(args) > 0 {
		schema, err = valuesSchema(args[0], schema)
	}
	if err != nil {
		return err
	}
	schema["$schema"] = "https://json-schema.org/draft-07/schema#"
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(schema)
}

// valuesSchema returns the schema of the values in the file, with that of the configuration in it.
func valuesSchema(file string, configuration map[string]any) (map[string]any, error) {
	values, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var document yaml.Node
	if err := yaml.Unmarshal(values, &document); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if len(document.Content) != 1 || document.Content[0].Kind != yaml.MappingNode {
		return nil, fmt.Errorf("%s: the values must be a map", file)
	}
	schema, err := schemaOf("", document.Content[0])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	properties, ok := schema["properties"].(map[string]any)
	if !ok {
		return nil, fmt.Errorf("%s: the values are empty", file)
	}
	// Helm passes these to every chart.
	properties["global"] = map[string]any{"type": "object", "description": "Values that Helm shares between a chart and its subcharts."}
	if config, ok := properties["config"].(map[string]any); ok {
		fields, _ := configuration["properties"].(map[string]any)
		if arguments, ok := fields["arguments"].(map[string]any); ok {
			arguments["additionalProperties"] = true // Plugins that are compiled in elsewhere can have arguments.
		}
		config["additionalProperties"], config["properties"] = false, fields
	}
	return schema, nil
}

// schemaOf returns the schema of a value with this default.
func schemaOf(path string, value *yaml.Node) (map[string]any, error) {
	switch {
	case value.Kind == yaml.SequenceNode:
		return map[string]any{"type": "array", "items": map[string]any{"type": "string"}}, nil
	case value.Kind == yaml.MappingNode:
		return objectSchema(path, value)
	case value.Tag == "!!str":
		return map[string]any{"type": "string"}, nil
	case value.Tag == "!!int":
		return map[string]any{"type": "integer"}, nil
	case value.Tag == "!!bool":
		return map[string]any{"type": "boolean"}, nil
	default:
		return nil, fmt.Errorf("line %d: %s: must have a default that shows its type", value.Line, path)
	}
}

// objectSchema returns the schema of an object with the keys of value only.
func objectSchema(path string, value *yaml.Node) (map[string]any, error) {
	properties := map[string]any{}
	for i := 0; i+1 < len(value.Content); i += 2 {
		key, child := value.Content[i], value.Content[i+1]
		below := strings.TrimPrefix(path+"."+key.Value, ".")
		schema, described, err := documented(below, key, child)
		if err != nil {
			return nil, err
		}
		if !described && (child.Kind != yaml.MappingNode || len(child.Content) == 0) {
			return nil, fmt.Errorf("line %d: %s has no description: write a comment %q before it", key.Line, below, descriptionMark)
		}
		properties[key.Value] = schema
	}
	return map[string]any{"type": "object", "additionalProperties": false, "properties": properties}, nil
}

// documented returns the schema of a key with the description and constraints of its comment.
func documented(path string, key, value *yaml.Node) (schema map[string]any, described bool, err error) {
	description, extra, err := comment(key.HeadComment)
	if err != nil {
		return nil, false, fmt.Errorf("line %d: %s: %w", key.Line, path, err)
	}
	if _, open := extra["additionalProperties"]; open {
		// The default is an example, not the list of keys.
		schema = map[string]any{"type": "object"}
	} else if _, typed := extra["type"]; typed {
		schema = map[string]any{}
	} else if schema, err = schemaOf(path, value); err != nil {
		return nil, false, err
	}
	maps.Copy(schema, extra)
	if description != "" {
		schema["description"] = description
	}
	return schema, description != "", nil
}

// comment returns the description and the constraints in a comment.
func comment(text string) (description string, extra map[string]any, err error) {
	for line := range strings.SplitSeq(text, "\n") {
		switch {
		case strings.HasPrefix(line, schemaMark):
			if err := sigsyaml.UnmarshalStrict([]byte(strings.TrimPrefix(line, schemaMark)), &extra); err != nil {
				return "", nil, fmt.Errorf("parsing the text after %q: %w", schemaMark, err)
			}
		case strings.HasPrefix(line, defaultMark):
		case strings.HasPrefix(line, descriptionMark):
			if description = strings.TrimPrefix(line, descriptionMark); strings.Contains(description, " --") {
				return "", nil, errors.New("the description has two dashes, where helm-docs would cut it")
			}
		case description != "":
			description += " " + strings.TrimSpace(strings.TrimPrefix(line, "#"))
		}
	}
	return description, extra, nil
}
