// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"sigs.k8s.io/yaml"
)

// plugin is the archive of one platform for krew.
type plugin struct {
	platform platform
	archive  string
	// sum is the SHA-256 of the archive.
	sum string
}

// krewManifest returns the manifest of the kubectl plugin prebind.
func krewManifest(v version, plugins []plugin) ([]byte, error) {
	var platforms []map[string]any
	for _, p := range plugins {
		platforms = append(platforms, map[string]any{
			"selector": map[string]any{"matchLabels": map[string]string{"os": p.platform.os, "arch": p.platform.arch}},
			"uri":      fmt.Sprintf("%s/releases/download/%s/%s", project, v, p.archive),
			"sha256":   p.sum,
			"bin":      "kubectl-prebind",
		})
	}
	return yaml.Marshal(map[string]any{
		"apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
		"kind":       "Plugin",
		"metadata":   map[string]string{"name": "prebind"},
		"spec": map[string]any{
			"version":          string(v),
			"homepage":         project,
			"shortDescription": "Explain and inspect the binds of pods",
			"description": "Shows why Prebind allows, delays or rejects the bind of a pod to a node, shows the\n" +
				"status of its replicas, and checks and tests BindPolicies. Most commands need\nPrebind in the cluster.\n",
			"platforms": platforms,
		},
	})
}
