// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package configuration

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/util/validation/field"
	strictjson "sigs.k8s.io/json"
)

// decode sets the fields of the configuration from the content of a file. Fields that are not in the file, or null, keep
// their values. The error joins all duplicate fields, or all unknown fields and all values of another type.
func (c *PrebindConfiguration) decode(content []byte) error {
	var document, more map[string]any
	documents := yaml.NewDecoder(bytes.NewReader(content))
	if err := documents.Decode(&document); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("invalid YAML: %w", err)
	}
	if err := documents.Decode(&more); !errors.Is(err, io.EOF) {
		return errors.New("must have one document, has more")
	}
	version, _ := document["apiVersion"].(string)
	kind, _ := document["kind"].(string)
	if version != APIVersion || kind != Kind {
		return fmt.Errorf("must be kind %s of apiVersion %s, got kind %q of apiVersion %q", Kind, APIVersion, kind, version)
	}
	dropNull(document)
	if err := c.set(document); err == nil {
		return nil
	}
	return errors.Join(problems(document, nil, func(part any) error { return Default(c.registry).set(part) })...)
}

// errUnknown is the error for fields that do not exist.
var errUnknown = errors.New("unknown field")

// set sets the fields of the configuration that the document contains.
func (c *PrebindConfiguration) set(document any) error {
	encoded, err := json.Marshal(document)
	if err != nil {
		return err
	}
	file := struct {
		*PrebindConfiguration
		Arguments any `json:"arguments"`
	}{c, c.Arguments.object()}
	unknown, err := strictjson.UnmarshalStrict(encoded, &file)
	if err == nil && len(unknown) > 0 {
		return errUnknown
	}
	return err
}

// problems returns an error for each part of the value that cannot be set, with its field. It sets each part alone, because the
// decoder stops at the first error, and the error of a duration does not name the field.
func problems(value any, at *field.Path, set func(any) error) []error {
	err := set(value)
	if err == nil {
		return nil
	}
	var all []error
	switch parts := value.(type) {
	case map[string]any:
		if set(map[string]any{}) != nil {
			break
		}
		for _, name := range slices.Sorted(maps.Keys(parts)) {
			all = append(all, problems(parts[name], at.Child(name), func(part any) error { return set(map[string]any{name: part}) })...)
		}
	case []any:
		if set([]any{}) != nil {
			break
		}
		for i := range parts {
			all = append(all, problems(parts[i], at.Index(i), func(part any) error { return set([]any{part}) })...)
		}
	}
	if len(all) == 0 {
		return []error{problem(value, at, err)}
	}
	return all
}

// problem returns the error for a value that cannot be set.
func problem(value any, at *field.Path, err error) error {
	var other *json.UnmarshalTypeError
	switch {
	case errors.Is(err, errUnknown):
		return fmt.Errorf("%w %q", err, at)
	case errors.As(err, &other):
		return field.Invalid(at, value, fmt.Sprintf("must be of type %s (a duration needs a unit, such as 90s)", other.Type))
	}
	return field.Invalid(at, value, err.Error())
}

// dropNull removes the fields that are null.
func dropNull(fields map[string]any) {
	for name, value := range fields {
		switch below := value.(type) {
		case nil:
			delete(fields, name)
		case map[string]any:
			dropNull(below)
		}
	}
}
