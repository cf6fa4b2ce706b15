// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// VersionEnv names the variable with the minor version of Kubernetes to run, such as 1.34.
const VersionEnv = "PREBIND_TEST_KUBERNETES"

// versioned is the binary with the components of a version that test/controlplane does not contain.
const versioned = "kubernetes"

// versionSource returns the source of the minor version, which test/kubernetes contains.
func versionSource(version string) source {
	s := controlPlaneSource
	s.folder, s.mod = versioned, version+".mod"
	return s
}

// versions returns the default version, that of test/controlplane, and all minor versions that can be built, in ascending
// order. Each file VERSION.mod in test/kubernetes is one.
func versions() (byDefault string, all []string, err error) {
	dir, err := controlPlaneSource.find()
	if err != nil {
		return "", nil, err
	}
	version, err := controlPlaneSource.versionIn(dir)
	if err != nil {
		return "", nil, err
	}
	numbers := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	byDefault = numbers[0] + "." + numbers[1]
	if dir, err = versionSource("").find(); err != nil {
		return "", nil, err
	}
	files, err := filepath.Glob(filepath.Join(dir, "[0-9]*.mod"))
	if err != nil {
		return "", nil, err
	}
	all = []string{byDefault}
	for _, file := range files {
		all = append(all, strings.TrimSuffix(filepath.Base(file), ".mod"))
	}
	slices.Sort(all)
	return byDefault, all, nil
}

// selectVersion returns the source of the version in [VersionEnv], and whether it needs one: the default version does not.
func selectVersion() (s source, needed bool, err error) {
	version := os.Getenv(VersionEnv)
	if version == "" {
		return source{}, false, nil
	}
	byDefault, all, err := versions()
	if err != nil {
		return source{}, false, fmt.Errorf("select Kubernetes %s: %w", version, err)
	}
	if !slices.Contains(all, version) {
		return source{}, false, fmt.Errorf("select Kubernetes %s: unknown version: set %s to one of %s",
			version, VersionEnv, strings.Join(all, ", "))
	}
	return versionSource(version), version != byDefault, nil
}
