// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// decode sets the fields of the configuration from the content of a file. Fields that are not in the file, or null, keep
// their values. The error joins all unknown and duplicate fields, and all values of another type. The decoders of
// apimachinery report only the first such value, without its field.
func (c *PrebindConfiguration) decode(content []byte) error {
	var document, more yaml.Node
	documents := yaml.NewDecoder(bytes.NewReader(content))
	if err := documents.Decode(&document); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("invalid YAML: %w", err)
	}
	if err := documents.Decode(&more); !errors.Is(err, io.EOF) {
		return errors.New("must have one document, has more")
	}
	c.APIVersion, c.Kind = "", ""
	var problems []error
	for _, root := range document.Content {
		problems = decodeField(nil, reflect.ValueOf(c).Elem(), root)
	}
	if c.APIVersion != APIVersion || c.Kind != Kind {
		return fmt.Errorf("must be kind %s of apiVersion %s, got kind %q of apiVersion %q", Kind, APIVersion, c.Kind, c.APIVersion)
	}
	return errors.Join(problems...)
}

// decodeField sets the value of one field.
func decodeField(path *field.Path, v reflect.Value, n *yaml.Node) []error {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Tag == "!!null" {
		return nil
	}
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		return decodeField(path, v.Elem(), n)
	}
	fields, isMap := fieldsOf(v)
	switch {
	case isMap && n.Kind == yaml.MappingNode:
		return decodeFields(path, fields, n)
	case !isMap && v.Kind() == reflect.Slice && n.Kind == yaml.SequenceNode:
		v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
		var all []error
		for i, element := range n.Content {
			all = append(all, decodeField(path.Index(i), v.Index(i), element)...)
		}
		return all
	}
	want, into := fmt.Sprint("must be of type ", schemaOf(v, "", noUsage)["type"]), v.Addr().Interface()
	if d, ok := into.(*metav1.Duration); ok {
		want, into = "must be a duration with a unit, such as 90s", &d.Duration
	}
	if isMap || n.Decode(into) != nil {
		return []error{fmt.Errorf("line %d: %w", n.Line, field.Invalid(path, cmp.Or(n.Value, n.ShortTag()), want))}
	}
	return nil
}

// decodeFields sets the values of the fields that a map contains.
func decodeFields(path *field.Path, fields []namedField, n *yaml.Node) []error {
	var all []error
	found := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		at := path.Child(key.Value)
		known := slices.IndexFunc(fields, func(f namedField) bool { return f.name == key.Value })
		switch {
		case known < 0:
			all = append(all, fmt.Errorf("line %d: %s: unknown field: must be one of %s", key.Line, at, strings.Join(namesOf(fields), ", ")))
		case found[key.Value]:
			all = append(all, fmt.Errorf("line %d: %s: duplicate field: must be set once", key.Line, at))
		default:
			all = append(all, decodeField(at, fields[known].value, n.Content[i+1])...)
		}
		found[key.Value] = true
	}
	return all
}
