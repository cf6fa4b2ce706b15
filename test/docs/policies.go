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

	"sigs.k8s.io/yaml"
)

// policiesIntro is written by hand.
//
//go:embed policies.intro.md
var policiesIntro string

// property is a part of the schema of a CustomResourceDefinition.
type property struct {
	Description string              `json:"description"`
	Type        string              `json:"type"`
	Format      string              `json:"format"`
	Default     any                 `json:"default"`
	Enum        []string            `json:"enum"`
	Pattern     string              `json:"pattern"`
	MinLength   *int                `json:"minLength"`
	MaxLength   *int                `json:"maxLength"`
	MinItems    *int                `json:"minItems"`
	MaxItems    *int                `json:"maxItems"`
	Items       *property           `json:"items"`
	Properties  map[string]property `json:"properties"`
	Required    []string            `json:"required"`
	ListType    string              `json:"x-kubernetes-list-type"`
	ListMapKeys []string            `json:"x-kubernetes-list-map-keys"`
	Validations []struct {
		Message string `json:"message"`
	} `json:"x-kubernetes-validations"`
}

// shared are types of Kubernetes that the document links to, by a field that only they have.
var shared = map[string]string{
	"matchExpressions":   "[LabelSelector](https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/label-selector/)",
	"lastTransitionTime": "[Condition](https://kubernetes.io/docs/reference/generated/kubernetes-api/v1.36/#condition-v1-meta)",
}

// writePolicies writes the reference of the fields in a CustomResourceDefinition.
func writePolicies(to io.Writer, crd string) error {
	content, err := os.ReadFile(crd)
	if err != nil {
		return err
	}
	var definition struct {
		Spec struct {
			Versions []struct {
				Schema struct {
					OpenAPIV3Schema property `json:"openAPIV3Schema"`
				} `json:"schema"`
			} `json:"versions"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal(content, &definition); err != nil {
		return fmt.Errorf("%s: %w", crd, err)
	}
	if n := len(definition.Spec.Versions); n != 1 {
		return fmt.Errorf("%s: must have one version, has %d", crd, n)
	}
	root := definition.Spec.Versions[0].Schema.OpenAPIV3Schema
	fmt.Fprintf(to, "%s\n", policiesIntro)
	root.writeAbout(to)
	for _, name := range []string{"spec", "status"} {
		writeObject(to, name, root.Properties[name])
	}
	return nil
}

// writeObject writes the section of an object, and those of the objects in it.
func writeObject(to io.Writer, path string, o property) {
	fmt.Fprintf(to, "\n## %s\n\n", path)
	o.writeAbout(to)
	if len(o.Validations) > 0 {
		fmt.Fprint(to, "\nFields:\n") // Two lists need a text between them.
	}
	fmt.Fprintln(to)
	names := slices.Sorted(maps.Keys(o.Properties))
	for _, name := range names {
		p := o.Properties[name]
		var text []string
		if p.object() == nil || p.Items != nil { // The section of an object contains its description.
			text = append(text, oneLine(p.Description))
		}
		if slices.Contains(o.Required, name) {
			text = append(text, "**Required.**")
		}
		if p.Default != nil {
			text = append(text, fmt.Sprintf("Default: `%v`.", p.Default))
		}
		text = append(text, p.limits()...)
		if p.object() == nil {
			for _, v := range p.Validations {
				text = append(text, strings.ToUpper(v.Message[:1])+v.Message[1:]+".")
			}
		}
		about := strings.Join(slices.DeleteFunc(text, func(s string) bool { return s == "" }), " ")
		fmt.Fprintln(to, strings.TrimSuffix(fmt.Sprintf("- `%s` (%s): %s", name, p.typeName(below(path, name, p)), about), ": "))
	}
	sections := map[string]property{}
	for _, name := range names {
		child := o.Properties[name].object()
		if child == nil {
			continue
		}
		section := below(path, name, o.Properties[name])
		if same := sectionOf(sections, *child); same != "" {
			fmt.Fprintf(to, "\n## %s\n\nThe same as [%s](#%s).\n", section, same, anchor(same))
			continue
		}
		sections[section] = *child
		writeObject(to, section, *child)
	}
}

// sectionOf returns the section of an object with the same fields, or "".
func sectionOf(sections map[string]property, o property) string {
	for section, other := range sections {
		if reflect.DeepEqual(other, o) {
			return section
		}
	}
	return ""
}

// writeAbout writes the description of an object, and the rules that its fields follow together.
func (p property) writeAbout(to io.Writer) {
	fmt.Fprintln(to, oneLine(p.Description))
	if len(p.Validations) > 0 {
		fmt.Fprint(to, "\nRules:\n\n")
	}
	for _, v := range p.Validations {
		fmt.Fprintf(to, "- %s.\n", v.Message)
	}
}

// below returns the path of a field.
func below(path, name string, p property) string {
	if p.Items != nil {
		name += "[]"
	}
	return path + "." + name
}

// object returns the object that the document describes in a section of its own: the property or its items. Nil
// means none.
func (p property) object() *property {
	o := &p
	if p.Items != nil {
		// The description of a list of objects is that of the field. The items have one of their own.
		o = p.Items
	}
	if len(o.Properties) == 0 || o.shared() != "" {
		return nil
	}
	return o
}

func (p property) shared() string {
	for field, link := range shared {
		if _, ok := p.Properties[field]; ok {
			return link
		}
	}
	return ""
}

// typeName returns the type, with a link to the section at the path.
func (p property) typeName(path string) string {
	switch {
	case p.shared() != "":
		return p.shared()
	case p.Items != nil && p.object() != nil:
		return "[list of objects](#" + anchor(path) + ")"
	case p.Items != nil && p.Items.shared() != "":
		return "list of " + p.Items.shared()
	case p.Items != nil:
		return "list of " + p.Items.typeName("") + "s"
	case p.object() != nil:
		return "[object](#" + anchor(path) + ")"
	case p.Format == "duration":
		return "duration"
	default:
		return p.Type
	}
}

func anchor(path string) string {
	return strings.ToLower(strings.NewReplacer(".", "", "[", "", "]", "").Replace(path))
}

// limits returns the constraints that the schema itself expresses.
func (p property) limits() []string {
	var all []string
	if len(p.Enum) > 0 {
		all = append(all, "One of `"+strings.Join(p.Enum, "`, `")+"`.")
	}
	all = append(all, between(p.MinLength, p.MaxLength, "characters"), between(p.MinItems, p.MaxItems, "items"))
	if p.Items != nil && len(p.Items.Properties) == 0 {
		for _, l := range p.Items.limits() {
			if l != "" {
				all = append(all, "Each item: "+strings.ToLower(l[:1])+l[1:])
			}
		}
	}
	switch {
	case len(p.ListMapKeys) > 0:
		all = append(all, "Each `"+strings.Join(p.ListMapKeys, "`, `")+"` is unique.")
	case p.ListType == "set":
		all = append(all, "Items are unique.")
	}
	if p.Pattern != "" {
		all = append(all, "Pattern: `"+p.Pattern+"`.")
	}
	return all
}

func between(low, high *int, what string) string {
	switch {
	case low != nil && high != nil:
		return fmt.Sprintf("%d to %d %s.", *low, *high, what)
	case high != nil:
		return fmt.Sprintf("At most %d %s.", *high, what)
	case low != nil:
		return fmt.Sprintf("At least %d %s.", *low, what)
	default:
		return ""
	}
}

// oneLine returns a description as a line of Markdown.
func oneLine(text string) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(text), " "), "<", "&lt;")
}
