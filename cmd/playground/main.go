// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !js

// Command playground is the program of the policy playground, a page that checks and tests BindPolicies in the browser. It is built for
// WebAssembly. For other systems, it prints the examples of the page as JSON:
//
//	go run ./cmd/playground config/policies
package main

import (
	"encoding/json"
	"fmt"
	"os"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "playground:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("the directory of the policies is required")
	}
	all, err := examples(args[0])
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(all)
}
