// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"slices"
	"strings"

	"github.com/google/cel-go/common/types"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/cel/openapi"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/prebind/prebind/internal/policy/schema"
)

// withSchema returns the type of the objects of a resource according to the schema of its kind, or the type without a schema.
func (c *compiler) withSchema(d *declared, object *types.Type) *types.Type {
	if d.typed != nil || c.options.Schemas == nil {
		return object
	}
	s, err := c.options.Schemas.ResolveSchema(d.Kind)
	if err != nil || s == nil {
		return object
	}
	if d.OnNode && !mayHave(s, "spec", "nodeName") {
		c.warn(d.Path+".onNode", d.Kind.Kind+" has no field spec.nodeName: no object is on a node")
	}
	kind := d.Kind.String()
	if !slices.Contains(c.known, kind) {
		c.known = append(c.known, kind)
	}
	return c.custom.convert("policy/"+kind, s, true, 0)
}

// checkSchemas checks an expression with the schemas of custom resources, and returns its type, which is output without schemas. Errors are
// warnings. The policy is in force in any case, as with the type checking of ValidatingAdmissionPolicy: the schema of a custom resource can
// change at any time.
func (c *compiler) checkSchemas(field, source string, want returns, output *types.Type) *types.Type {
	if len(c.known) == 0 {
		return output
	}
	checked, text := c.custom.check(source, want)
	if text != "" {
		c.warn(field, line(strings.Join(c.known, "; ")+": "+text))
		return types.DynType
	}
	return checked.OutputType()
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
func (sc *scope) convert(name string, s *spec.Schema, resource bool, depth int) *types.Type {
	if s == nil || depth > maxSchemaDepth || len(sc.structs) > maxSchemaObjects {
		return types.DynType
	}
	k := openapi.Schema{Schema: s}
	if k.IsXIntOrString() || k.IsXPreserveUnknownFields() {
		return types.DynType
	}
	if len(s.Type) == 0 && len(s.AllOf) == 1 {
		return sc.convert(name, &s.AllOf[0], resource, depth+1)
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
		return types.NewListType(sc.convert(name+"[]", s.Items.Schema, false, depth+1))
	case "object":
		return sc.object(name, s, resource || k.IsXEmbeddedResource(), depth)
	}
	return types.DynType
}

func (sc *scope) object(name string, s *spec.Schema, resource bool, depth int) *types.Type {
	a := s.AdditionalProperties
	switch {
	case len(s.Properties) > 0 && (a == nil || !a.Allows && a.Schema == nil):
	case len(s.Properties) > 0:
		return types.DynType
	case a != nil && a.Schema != nil:
		return types.NewMapType(types.StringType, sc.convert(name+"{}", a.Schema, false, depth+1))
	default:
		return types.DynType
	}
	if _, ok := sc.structs[name]; ok {
		return types.NewObjectType(name)
	}
	fields := make(map[string]*types.Type, len(s.Properties))
	sc.structs[name] = fields
	for field, property := range s.Properties {
		fields[field] = sc.convert(name+"."+field, &property, false, depth+1)
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
