// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package configuration

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"go.yaml.in/yaml/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prebind/prebind/config/v1alpha1"
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
	case v.Type() == reflect.TypeFor[metav1.Duration]():
		schema["type"], schema["pattern"] = "string", durationPattern
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

// namedField is a field of a struct, with its name in the file.
type namedField struct {
	name  string
	value reflect.Value
}

// fieldsOf returns the fields of a struct or of an ArgumentsList in order. It returns false for other types.
func fieldsOf(v reflect.Value) ([]namedField, bool) {
	if list, ok := reflect.TypeAssert[ArgumentsList](v); ok {
		v = reflect.ValueOf(list.object()).Elem()
	}
	if v.Kind() != reflect.Struct || v.Type() == reflect.TypeFor[metav1.Duration]() {
		return nil, false
	}
	var all []namedField
	for i := range v.NumField() {
		f := v.Type().Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.IsExported() && name != "-" {
			all = append(all, namedField{name: cmp.Or(name, f.Name), value: v.Field(i)})
		}
	}
	return all, true
}

// Fields returns the names of the fields of arguments in order.
func Fields(a v1alpha1.Arguments) []string {
	fields, _ := fieldsOf(reflect.ValueOf(a).Elem())
	names := make([]string, 0, len(fields))
	for _, f := range fields {
		names = append(names, f.name)
	}
	return names
}
