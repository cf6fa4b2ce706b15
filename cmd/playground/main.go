// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !js

// Command playground is the program of the policy playground, a page that checks and tests BindPolicies in the browser. It is built for
// WebAssembly. For other systems, it prints the examples of the page as JSON, from the root of the repository:
//
//	go run ./cmd/playground
package main

import (
	"encoding/json"
	"fmt"
	"os"
)

func main() {
	all, err := examples("config/policies")
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(all)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "playground:", err)
		os.Exit(1)
	}
}
