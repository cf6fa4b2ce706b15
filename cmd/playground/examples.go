// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !js

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/prebind/prebind/internal/policy/files"
)

// example is a policy of the library with one of its tests.
type example struct {
	Name   string `json:"name"`
	Policy string `json:"policy"`
	Test   string `json:"test"`
}

// examples returns the policies of the library, in the order of their names. A policy with several tests is an example for each. The name is that
// of the policy, followed by that of the test if it differs.
func examples(library string) ([]example, error) {
	tests, err := filepath.Glob(filepath.Join(library, "*", "*"+files.TestSuffix))
	if err != nil {
		return nil, err
	}
	if len(tests) == 0 {
		return nil, fmt.Errorf("%s: no policies with tests", library)
	}
	var all []example
	for _, file := range tests {
		dir := filepath.Dir(file)
		e := example{Name: filepath.Base(dir)}
		if test := strings.TrimSuffix(filepath.Base(file), files.TestSuffix); test != e.Name {
			e.Name += "/" + test
		}
		if e.Policy, err = read(filepath.Join(dir, policyFile)); err != nil {
			return nil, err
		}
		if e.Test, err = read(file); err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	return all, nil
}

// license is the header of the files.
const license = "# Copyright The Prebind Authors.\n# SPDX-License-Identifier: Apache-2.0\n\n"

// read returns a file without its license header, for which a small screen has no space. The page names the license.
func read(file string) (string, error) {
	content, err := os.ReadFile(file)
	return strings.TrimPrefix(string(content), license), err
}
