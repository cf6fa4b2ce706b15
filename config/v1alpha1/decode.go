// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"go.yaml.in/yaml/v3"
	strictjson "sigs.k8s.io/json"
)

// decode sets the fields of the configuration from the content of a file. Fields that are not in the file, or null, keep
// their values. The error joins all unknown fields, or is about duplicate ones, or about the first value of another type.
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
	encoded, err := json.Marshal(document)
	if err != nil {
		return fmt.Errorf("invalid YAML: %w", err)
	}
	file := struct {
		*PrebindConfiguration
		Arguments any `json:"arguments"`
	}{c, c.Arguments.object()}
	unknown, err := strictjson.UnmarshalStrict(encoded, &file)
	if err != nil {
		return fmt.Errorf("wrong type of a value, or a duration without a unit such as 90s: %w", err)
	}
	return errors.Join(unknown...)
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
