// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	_ "embed"
	"fmt"
	"io"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// policiesIntro is written by hand.
//
//go:embed policies.intro.md
var policiesIntro string

// shared are types of Kubernetes that the document links to, by a field that only they have.
var shared = map[string]string{
	"matchExpressions":   "[LabelSelector](https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/label-selector/)",
	"observedGeneration": "[Condition](https://pkg.go.dev/k8s.io/apimachinery/pkg/apis/meta/v1#Condition)",
}

// writePolicies writes the reference of the kinds in CustomResourceDefinitions.
func writePolicies(to io.Writer, crds []string) error {
	fmt.Fprint(to, policiesIntro)
	for _, crd := range crds {
		if err := writeKind(to, crd); err != nil {
			return err
		}
	}
	return nil
}

func writeKind(to io.Writer, crd string) error {
	content, err := os.ReadFile(crd)
	if err != nil {
		return err
	}
	var definition apiextensionsv1.CustomResourceDefinition
	if err := yaml.Unmarshal(content, &definition); err != nil {
		return fmt.Errorf("%s: %w", crd, err)
	}
	if n := len(definition.Spec.Versions); n != 1 {
		return fmt.Errorf("%s: must have one version, has %d", crd, n)
	}
	version, names := definition.Spec.Versions[0], definition.Spec.Names
	root := version.Schema.OpenAPIV3Schema
	fmt.Fprintf(to, "\n## %s\n\n%s It is %s-scoped, with the short name `%s`.", names.Kind, strings.Join(about(root), " "),
		strings.ToLower(string(definition.Spec.Scope)), strings.Join(names.ShortNames, "`, `"))
	if len(version.SelectableFields) > 0 {
		var fields []string
		for _, field := range version.SelectableFields {
			fields = append(fields, "`"+strings.TrimPrefix(field.JSONPath, ".")+"`")
		}
		fmt.Fprintf(to, " Field selectors: %s.", strings.Join(fields, ", "))
	}
	fmt.Fprintln(to)
	for _, name := range []string{"spec", "status"} {
		of := root.Properties[name]
		fmt.Fprintf(to, "\n### %s of a %s\n\n%s\n\n", name, names.Kind, strings.Join(about(&of), " "))
		writeFields(to, name, &of, map[string]string{})
	}
	return nil
}

// writeFields writes a line for each field of the object, and below it those of the objects in it. A long text that another field has is
// replaced by the path of that field in texts.
func writeFields(to io.Writer, path string, object *apiextensionsv1.JSONSchemaProps, texts map[string]string) {
	written := map[string]*apiextensionsv1.JSONSchemaProps{} // Fields of items, by the path of their list.
	for _, name := range slices.Sorted(maps.Keys(object.Properties)) {
		field := object.Properties[name]
		kind, below, in := field.Type, path+"."+name, &field
		if field.Items != nil {
			in = field.Items.Schema
			kind, below = "list of "+in.Type+"s", below+"[]"
		}
		for marker, link := range shared {
			if _, ok := in.Properties[marker]; ok {
				kind, in = strings.Replace(kind, "object", link, 1), &apiextensionsv1.JSONSchemaProps{}
			}
		}
		if slices.Contains(object.Required, name) {
			kind += ", required"
		}
		text := about(&field)
		if in != &field && len(in.Properties) > 0 {
			text = append(text, rules(in)...)
			for list, items := range written {
				if reflect.DeepEqual(items, in) {
					text, in = append(text, "Its items have the same fields as `"+list+"`."), &apiextensionsv1.JSONSchemaProps{}
				}
			}
			written[below] = in
		}
		line := strings.Join(text, " ")
		if other, ok := texts[line]; ok {
			line = "As `" + other + "`."
		} else if len(text[0]) > 80 {
			texts[line] = below
		}
		fmt.Fprintf(to, "- `%s` (%s): %s\n", below, kind, line)
		writeFields(to, below, in, texts)
	}
}

// about returns the description of a field, its default, and the constraints that the schema expresses, except the length of strings and the
// uniqueness of items, which the API server explains when it rejects an object.
func about(p *apiextensionsv1.JSONSchemaProps) []string {
	text := []string{strings.ReplaceAll(strings.Join(strings.Fields(p.Description), " "), "<", "&lt;")}
	add := func(format string, args ...any) { text = append(text, fmt.Sprintf(format, args...)) }
	if p.Default != nil {
		add("Default: `%s`.", strings.Trim(string(p.Default.Raw), `"`))
	}
	var values []string
	described := true // The description names all values.
	for _, value := range p.Enum {
		name := strings.Trim(string(value.Raw), `"`)
		values, described = append(values, "`"+name+"`"), described && strings.Contains(p.Description, name)
	}
	if !described {
		add("One of %s.", strings.Join(values, ", "))
	}
	for _, limit := range []struct {
		value *int64
		text  string
	}{
		{p.MaxItems, "Maximum items: %d."}, {p.MaxProperties, "Maximum entries: %d."},
	} {
		if limit.value != nil {
			add(limit.text, *limit.value)
		}
	}
	if p.AdditionalProperties != nil && p.AdditionalProperties.Schema.MaxLength != nil {
		add("Each value: maximum length: %d.", *p.AdditionalProperties.Schema.MaxLength)
	}
	return append(text, rules(p)...)
}

// rules returns the messages of the CEL rules of the schema.
func rules(p *apiextensionsv1.JSONSchemaProps) []string {
	var text []string
	for _, v := range p.XValidations {
		text = append(text, strings.ToUpper(v.Message[:1])+v.Message[1:]+".")
	}
	return text
}
