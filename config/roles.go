// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package config holds the shipped roles, so that the program can ask whether it has
// what they grant: there is one list of permissions, the one that is applied.
package config

import (
	"bufio"
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io"
	"path"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
)

//go:embed webhook/base/role.yaml webhook/plugins/*/role.yaml webhook/mutators/*/role.yaml webhook/certificates/*/role.yaml
var roles embed.FS

// Roles returns what the role.yaml in the folder of config/webhook grants: for the
// whole cluster, and within Prebind's own namespace. The folder is such as
// plugins/device; one that has no role is an error.
func Roles(folder string) (cluster, own []rbacv1.PolicyRule, err error) {
	content, err := roles.ReadFile(path.Join("webhook", folder, "role.yaml"))
	if err != nil {
		return nil, nil, fmt.Errorf("reading the role of %s: %w", folder, err)
	}
	scheme := runtime.NewScheme()
	if err := rbacv1.AddToScheme(scheme); err != nil {
		return nil, nil, err
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return cluster, own, nil
		}
		if err != nil {
			return nil, nil, fmt.Errorf("reading the role of %s: %w", folder, err)
		}
		if onlyComments(document) {
			continue
		}
		object, _, err := decoder.Decode(document, nil, nil)
		if err != nil {
			return nil, nil, fmt.Errorf("reading the role of %s: %w", folder, err)
		}
		switch role := object.(type) {
		case *rbacv1.ClusterRole:
			cluster = append(cluster, role.Rules...)
		case *rbacv1.Role:
			own = append(own, role.Rules...)
		default:
			return nil, nil, fmt.Errorf("reading the role of %s: it holds a %T", folder, object)
		}
	}
}

// onlyComments says that the document is empty, such as the one before the first
// separator of a generated file.
func onlyComments(document []byte) bool {
	for line := range bytes.Lines(document) {
		if line = bytes.TrimSpace(line); len(line) > 0 && line[0] != '#' {
			return false
		}
	}
	return true
}
