// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"maps"
	"slices"
	"strings"

	"github.com/google/cel-go/common/types"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/cel/openapi"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/prebind/prebind/policy/schema"
)

// check compiles the expressions again with the schemas of custom resources. The errors are warnings.
// The policy is in force in any case, as with the type checking of ValidatingAdmissionPolicy: the schema
// of a custom resource can change at any time.
func (c *compiler) check() {
	custom, known := c.customTypes()
	if len(custom.resources) == 0 {
		return
	}
	env, p, err := newEnvironment()
	if err != nil {
		return
	}
	maps.Copy(p.structs, custom.structs)
	for name, d := range c.out.resources {
		p.structs[typeResources.TypeName()][name] = d.cel(custom.resources[name])
	}
	checked := func(x *expression, want returns) *types.Type {
		ast, text := check(env, x.source, want)
		if text != "" {
			c.warn(x.field, line(known+": "+text))
			return types.DynType
		}
		return ast.OutputType()
	}
	variables := map[*expression]string{}
	for name, x := range c.out.variables {
		variables[x] = name
	}
	for i, x := range c.expressions {
		t := checked(x, c.want[i])
		if name, ok := variables[x]; ok {
			p.structs[typeVariables.TypeName()][name] = t
		}
	}
}

// openAPITypes are the CEL types of schemas.
type openAPITypes struct {
	// resources are the types of the objects of resources by name.
	resources map[string]*types.Type
	structs   map[string]map[string]*types.Type
}

// customTypes returns the types of the custom resources whose schemas are known, and their kinds.
func (c *compiler) customTypes() (*openAPITypes, string) {
	o := &openAPITypes{resources: map[string]*types.Type{}, structs: map[string]map[string]*types.Type{}}
	var known []string
	for _, r := range c.policy.Spec.Resources {
		d := c.out.resources[r.Name]
		if d.typed != nil || c.options.Schemas == nil {
			continue
		}
		s, err := c.options.Schemas.ResolveSchema(d.Kind)
		if err != nil || s == nil {
			continue
		}
		if d.OnNode && !mayHave(s, "spec", "nodeName") {
			c.warn("spec.resources["+r.Name+"].onNode", d.Kind.Kind+" has no field spec.nodeName: no object is on a node")
		}
		name := d.Kind.String()
		o.resources[r.Name] = o.convert("policy/"+name, s, true, 0)
		if !slices.Contains(known, name) {
			known = append(known, name)
		}
	}
	return o, strings.Join(known, "; ")
}

// mayHave returns whether an object with the schema can have the field.
func mayHave(s *spec.Schema, path ...string) bool {
	for _, name := range path {
		field, ok := s.Properties[name]
		if !ok {
			k := openapi.Schema{Schema: s}
			return k.IsXPreserveUnknownFields() || s.AdditionalProperties != nil
		}
		s = &field
	}
	return true
}

// maxSchemaDepth and maxSchemaObjects limit a schema, which may refer to itself.
const (
	maxSchemaDepth   = 64
	maxSchemaObjects = 2_000
)

// convert returns the type of unstructured values with the schema. Strings have no format: their values are not
// converted. The type is dyn if the schema allows fields that it does not describe.
func (o *openAPITypes) convert(name string, s *spec.Schema, resource bool, depth int) *types.Type {
	if s == nil || depth > maxSchemaDepth || len(o.structs) > maxSchemaObjects {
		return types.DynType
	}
	k := openapi.Schema{Schema: s}
	if k.IsXIntOrString() || k.IsXPreserveUnknownFields() {
		return types.DynType
	}
	if len(s.Type) == 0 && len(s.AllOf) == 1 {
		return o.convert(name, &s.AllOf[0], resource, depth+1)
	}
	if len(s.Type) != 1 {
		return types.DynType
	}
	switch s.Type[0] {
	case "string":
		return types.StringType
	case "boolean":
		return types.BoolType
	case "integer":
		return types.IntType
	case "number":
		return types.DoubleType
	case "array":
		if s.Items == nil {
			return types.NewListType(types.DynType)
		}
		return types.NewListType(o.convert(name+"[]", s.Items.Schema, false, depth+1))
	case "object":
		return o.object(name, s, resource || k.IsXEmbeddedResource(), depth)
	}
	return types.DynType
}

func (o *openAPITypes) object(name string, s *spec.Schema, resource bool, depth int) *types.Type {
	a := s.AdditionalProperties
	switch {
	case len(s.Properties) > 0 && (a == nil || !a.Allows && a.Schema == nil):
	case len(s.Properties) > 0:
		return types.DynType
	case a != nil && a.Schema != nil:
		return types.NewMapType(types.StringType, o.convert(name+"{}", a.Schema, false, depth+1))
	default:
		return types.DynType
	}
	if _, ok := o.structs[name]; ok {
		return types.NewObjectType(name)
	}
	fields := make(map[string]*types.Type, len(s.Properties))
	o.structs[name] = fields
	for field, property := range s.Properties {
		fields[field] = o.convert(name+"."+field, &property, false, depth+1)
	}
	if resource {
		fields["apiVersion"], fields["kind"] = types.StringType, types.StringType
		if m, ok := s.Properties["metadata"]; !ok || len(m.Properties) == 0 && len(m.AllOf) == 0 {
			fields["metadata"] = schema.For[metadata]().CEL()
		}
	}
	return types.NewObjectType(name)
}

// metadata is that of custom resources, whose times are strings.
type metadata struct {
	metav1.ObjectMeta `json:",inline"`
	CreationTimestamp string `json:"creationTimestamp"`
	DeletionTimestamp string `json:"deletionTimestamp"`
}
