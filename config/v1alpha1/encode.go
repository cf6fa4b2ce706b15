// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"reflect"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Encode returns the configuration as a file.
func (c *PrebindConfiguration) Encode() ([]byte, error) {
	encoded, err := yaml.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("encoding the configuration: %w", err)
	}
	return encoded, nil
}

// EncodeWithComments returns the configuration as a file that describes each field.
func (c *PrebindConfiguration) EncodeWithComments() ([]byte, error) {
	var root yaml.Node
	if err := root.Encode(c); err != nil {
		return nil, fmt.Errorf("encoding the configuration: %w", err)
	}
	comment(&root, "", c.usage())
	var out strings.Builder
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(2)
	if err := encoder.Encode(&root); err != nil {
		return nil, fmt.Errorf("encoding the configuration: %w", err)
	}
	return []byte(out.String()), nil
}

// comment adds the usage above each field of the map.
func comment(at *yaml.Node, prefix string, help usage) {
	for i := 0; i+1 < len(at.Content); i += 2 {
		key, value := at.Content[i], at.Content[i+1]
		field := prefix + key.Value
		if text := help(field); text != "" {
			key.HeadComment = wrapped(text, 100)
		}
		if value.Kind == yaml.MappingNode {
			comment(value, field+".", help)
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

// durationPattern matches the durations that time.ParseDuration accepts.
const durationPattern = `^[+-]?(0|([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h))+$`

// Schema returns the JSON schema of the file, with the values of the configuration as
// defaults. It contains the arguments of all registered mutators and plugins.
func (c *PrebindConfiguration) Schema() map[string]any {
	schema := schemaOf(reflect.ValueOf(c).Elem(), "", c.usage())
	schema["$schema"] = "https://json-schema.org/draft-07/schema#"
	schema["required"] = []string{"apiVersion", "kind"}
	properties, _ := schema["properties"].(map[string]any)
	properties["apiVersion"] = map[string]any{"const": APIVersion}
	properties["kind"] = map[string]any{"const": Kind}
	return schema
}

// schemaOf returns the schema of the field with this value.
func schemaOf(v reflect.Value, path string, help usage) map[string]any {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			v = reflect.New(v.Type().Elem())
		}
		return schemaOf(v.Elem(), path, help)
	}
	schema := map[string]any{}
	if text := help(path); text != "" {
		schema["description"] = text
	}
	if fields, isMap := fieldsOf(v); isMap {
		properties := map[string]any{}
		for _, f := range fields {
			properties[f.name] = schemaOf(f.value, strings.TrimPrefix(path+"."+f.name, "."), help)
		}
		schema["type"], schema["additionalProperties"], schema["properties"] = "object", false, properties
		return schema
	}
	if !v.IsZero() {
		schema["default"] = v.Interface()
	}
	switch kind := v.Kind(); {
	case v.Type() == reflect.TypeFor[time.Duration]():
		schema["type"], schema["pattern"] = "string", durationPattern
		if !v.IsZero() {
			schema["default"] = fmt.Sprint(v.Interface())
		}
	case v.Type() == reflect.TypeFor[Mode]():
		schema["enum"] = Modes()
	case kind == reflect.Slice:
		schema["type"], schema["items"] = "array", schemaOf(reflect.New(v.Type().Elem()).Elem(), path+"[]", help)
	case kind == reflect.Map:
		schema["type"] = "object"
	case kind == reflect.Bool:
		schema["type"] = "boolean"
	case kind == reflect.String:
		schema["type"] = "string"
	case reflect.Int <= kind && kind <= reflect.Uint64:
		schema["type"] = "integer"
	}
	return schema
}
