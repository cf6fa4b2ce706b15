// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package layers holds the packages of the module to the direction of their dependencies,
// and go.mod to what the program needs.
package layers

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
)

// module is the path of the program's module.
const module = "github.com/prebind/prebind"

// layer are packages on the same level. A package may import packages of lower layers, and
// none of its own layer.
type layer struct {
	// packages are patterns as path.Match takes them, relative to the module.
	packages []string
	// only, if it is set, are the patterns of the packages of the module that these
	// packages may import.
	only []string
}

// layers are all packages of the module outside test, from top to bottom. To add a
// package, add it to the lowest layer that is above all that it imports.
func layers() []layer {
	return []layer{
		{packages: []string{"cmd/prebind", "cmd/kubectl-prebind", "docs/example"}},
		{packages: []string{"cmd/playground"}, only: []string{"internal/policy/cases", "internal/policy/files", "internal/policy"}},
		{packages: []string{"cmd/prebind/app"}},
		{packages: []string{"cmd/kubectl-prebind/app"}},
		{packages: []string{"cmd/kubectl-prebind/internal/conformance"}, only: []string{"cmd/kubectl-prebind/internal/*", "cmd/internal/cli", "webhook", "binder", "internal/work"}},
		{packages: []string{"cmd/kubectl-prebind/internal/dryrun"}, only: []string{"webhook", "binder"}},
		{packages: []string{"cmd/internal/cli"}, only: []string{"internal/text"}},
		{packages: []string{"internal/assembly"}},
		{packages: []string{"internal/telemetry"}},
		{packages: []string{"webhook"}},
		{packages: []string{"internal/certificates"}, only: []string{}},
		{packages: []string{"internal/apiclient"}},
		{packages: []string{"binder"}},
		{packages: []string{"internal/configuration"}, only: []string{"binder/framework", "mutators", "config/v1alpha1"}},
		{packages: []string{"internal/replica"}, only: []string{"internal/work", "internal/text", "binder/framework"}},
		{packages: []string{"internal/work"}, only: []string{"internal/notify", "internal/podstate", "internal/text", "binder/framework", "config/v1alpha1"}},
		{packages: []string{"internal/mutation"}, only: []string{"mutators", "config/v1alpha1"}},
		{packages: []string{"binder/plugins/*", "docs/example/after", "docs/example/license", "docs/example/operator"}, only: []string{"binder/framework", "internal/claimed", "internal/ledger", "internal/volumes", "internal/tasks", "internal/policy", "internal/podstate", "internal/nodecondition", "internal/text", "policy/v1alpha1", "config/v1alpha1"}},
		{packages: []string{"internal/tasks"}, only: []string{"binder/framework", "internal/policy", "internal/podstate", "internal/text", "policy/v1alpha1"}},
		{packages: []string{"internal/policy/cases"}, only: []string{"internal/policy/files", "internal/policy", "policy/v1alpha1"}},
		{packages: []string{"internal/policy/files"}, only: []string{"internal/policy", "policy/v1alpha1", "config"}},
		{packages: []string{"internal/policy"}, only: []string{"policy/v1alpha1", "internal/text"}},
		{packages: []string{"policy/v1alpha1"}, only: []string{}},
		{packages: []string{"internal/claimed"}, only: []string{"binder/framework", "mutators", "config/v1alpha1"}},
		{packages: []string{"internal/ledger", "internal/volumes", "internal/notify"}},
		{packages: []string{"binder/framework"}},
		{packages: []string{"mutators/*", "docs/example/rack"}, only: []string{"mutators", "mutators/internal/*", "config/v1alpha1", "internal/text"}},
		{packages: []string{"mutators"}, only: []string{"config/v1alpha1"}},
		{packages: []string{"mutators/internal/*"}, only: []string{}},
		{packages: []string{"internal/podstate", "internal/nodecondition"}},
		{packages: []string{"internal/text"}, only: []string{}},
		{packages: []string{"config/v1alpha1"}},
		{packages: []string{"config"}},
	}
}

// violations returns the imports that the layers forbid, and the packages that are in no
// layer. The packages and their imports are relative to the module.
func violations(all []layer, imports map[string][]string) []string {
	var found []string
	for _, from := range slices.Sorted(maps.Keys(imports)) {
		above := layerOf(all, from)
		if above < 0 {
			found = append(found, fmt.Sprintf("%s is in no layer: add it to the table in test/layers", from))
			continue
		}
		for _, to := range imports[from] {
			below := layerOf(all, to)
			switch only := all[above].only; {
			case below < 0:
				found = append(found, fmt.Sprintf("%s imports %s, which is in no layer", from, to))
			case below <= above:
				found = append(found, fmt.Sprintf("%s imports %s, which is in the same layer or above it", from, to))
			case only != nil && !matches(only, to):
				found = append(found, fmt.Sprintf("%s imports %s; it may import only: %s", from, to, strings.Join(only, ", ")))
			}
		}
	}
	return found
}

// layerOf returns the index of the package's layer, -1 if there is none.
func layerOf(all []layer, name string) int {
	return slices.IndexFunc(all, func(l layer) bool { return matches(l.packages, name) })
}

func matches(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		ok, err := path.Match(pattern, name)
		return ok && err == nil
	})
}
