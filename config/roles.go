// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package config embeds the shipped roles, so that the program can check its permissions
// against the roles that are applied.
package config

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io"
	"path"

	rbacv1 "k8s.io/api/rbac/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
)

//go:embed webhook/base/role.yaml webhook/plugins/*/role.yaml webhook/mutators/*/role.yaml webhook/certificates/*/role.yaml
var roles embed.FS

// Roles returns the rules of config/webhook/<folder>/role.yaml, such as that of
// plugins/device: those for the whole cluster, and those for Prebind's own namespace.
func Roles(folder string) (cluster, own []rbacv1.PolicyRule, err error) {
	content, err := roles.ReadFile(path.Join("webhook", folder, "role.yaml"))
	if err != nil {
		return nil, nil, fmt.Errorf("reading the role of %s: %w", folder, err)
	}
	documents := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(content), len(content))
	for {
		var role rbacv1.ClusterRole // A Role has the same fields.
		switch err := documents.Decode(&role); {
		case errors.Is(err, io.EOF):
			return cluster, own, nil
		case err != nil:
			return nil, nil, fmt.Errorf("reading the role of %s: %w", folder, err)
		}
		switch role.Kind {
		case "ClusterRole":
			cluster = append(cluster, role.Rules...)
		case "Role":
			own = append(own, role.Rules...)
		case "": // The file begins with a document of comments only.
		default:
			return nil, nil, fmt.Errorf("reading the role of %s: must have only roles, has a %s", folder, role.Kind)
		}
	}
}
