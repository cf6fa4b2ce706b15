// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package config contains the manifests that Prebind ships.
package config

import (
	"embed"
	"fmt"
	"io/fs"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

//go:embed webhook/plugins/policy/*.yaml
var policyManifests embed.FS

// BindPolicyCRD returns the shipped CustomResourceDefinition of BindPolicy.
func BindPolicyCRD() (*apiextensionsv1.CustomResourceDefinition, error) {
	names, err := fs.Glob(policyManifests, "webhook/plugins/policy/*.yaml")
	if err != nil {
		return nil, fmt.Errorf("reading the CustomResourceDefinition of BindPolicy: %w", err)
	}
	for _, name := range names {
		content, err := policyManifests.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("reading the CustomResourceDefinition of BindPolicy: %w", err)
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.Unmarshal(content, &crd); err == nil && crd.Kind == "CustomResourceDefinition" {
			return &crd, nil
		}
	}
	return nil, fmt.Errorf("config/webhook/plugins/policy contains no CustomResourceDefinition")
}
