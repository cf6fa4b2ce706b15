// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package config contains the manifests that Prebind ships, and the JSON schema of its configuration file.
package config

import (
	_ "embed"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// ConfigurationSchema is the JSON schema of the configuration file.
//
//go:embed configuration.schema.json
var ConfigurationSchema []byte

//go:embed webhook/plugins/policy/crd.yaml
var bindPolicyCRD []byte

// BindPolicyCRD returns the shipped CustomResourceDefinition of BindPolicy.
func BindPolicyCRD() (*apiextensionsv1.CustomResourceDefinition, error) {
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.Unmarshal(bindPolicyCRD, crd); err != nil {
		return nil, fmt.Errorf("reading the CustomResourceDefinition of BindPolicy: %w", err)
	}
	return crd, nil
}
