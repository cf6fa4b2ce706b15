// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package files

import (
	"context"
	"fmt"
	"math"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	schemacel "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/prebind/prebind/config"
)

// Schemas are the schemas of the custom resources that the API server serves, from CustomResourceDefinitions. It implements policy.Schemas.
type Schemas map[schema.GroupVersionKind]*spec.Schema

// ResolveSchema returns the schema of the kind. It is nil for other kinds.
func (s Schemas) ResolveSchema(kind schema.GroupVersionKind) (*spec.Schema, error) {
	return s[kind], nil
}

// Add adds the schemas of all versions of a CustomResourceDefinition that it serves.
func (s Schemas) Add(d *Document) error {
	var crd apiextensionsv1.CustomResourceDefinition
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(d.Object, &crd); err != nil {
		return fmt.Errorf("%s: CustomResourceDefinition: %w", d.At(""), err)
	}
	for i, v := range crd.Spec.Versions {
		structural, _, err := schemaOf(v.Schema)
		if err != nil {
			return fmt.Errorf("%s: CustomResourceDefinition %s: %w", d.At(fmt.Sprintf("spec.versions[%d].schema", i)), crd.Name, err)
		}
		if v.Served {
			s[schema.GroupVersionKind{Group: crd.Spec.Group, Version: v.Name, Kind: crd.Spec.Names.Kind}] = structural.ToKubeOpenAPI()
		}
	}
	return nil
}

// schemaOf returns the schema in the forms of the API server's libraries.
func schemaOf(v *apiextensionsv1.CustomResourceValidation) (*structuralschema.Structural, *apiextensions.JSONSchemaProps, error) {
	if v == nil || v.OpenAPIV3Schema == nil {
		return nil, nil, fmt.Errorf("schema.openAPIV3Schema: required")
	}
	var props apiextensions.JSONSchemaProps
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(v.OpenAPIV3Schema, &props, nil); err != nil {
		return nil, nil, fmt.Errorf("schema.openAPIV3Schema: %w", err)
	}
	structural, err := structuralschema.NewStructural(&props)
	if err != nil {
		return nil, nil, fmt.Errorf("schema.openAPIV3Schema: %w", err)
	}
	return structural, &props, nil
}

// validator checks BindPolicies like the API server with the CustomResourceDefinition of BindPolicy.
type validator struct {
	structural *structuralschema.Structural
	schema     validation.SchemaCreateValidator
	rules      *schemacel.Validator
}

// sharedValidator returns a validator with the embedded CustomResourceDefinition. It is immutable.
var sharedValidator = sync.OnceValue(func() *validator {
	crd, err := config.BindPolicyCRD()
	utilruntime.Must(err)
	structural, props, err := schemaOf(crd.Spec.Versions[0].Schema) // The only version is v1alpha1.
	utilruntime.Must(err)
	byType, _, err := validation.NewSchemaValidator(props)
	utilruntime.Must(err)
	return &validator{structural: structural, schema: byType, rules: schemacel.NewValidator(structural, true, celconfig.PerCallLimit)}
})

// validate returns the violations. It removes the nulls of the object that the API server removes, and sets the defaults.
func (v *validator) validate(ctx context.Context, object map[string]any) field.ErrorList {
	defaulting.PruneNonNullableNullsWithoutDefaults(object, v.structural)
	defaulting.Default(object, v.structural)
	problems := validation.ValidateCustomResource(nil, object, v.schema)
	problems = append(problems, listtype.ValidateListSetsAndMaps(nil, v.structural, object)...)
	if len(problems) > 0 {
		return problems // The rules expect valid types.
	}
	problems, _ = v.rules.Validate(ctx, nil, v.structural, object, nil, math.MaxInt64)
	return problems
}
