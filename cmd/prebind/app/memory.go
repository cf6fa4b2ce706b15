// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"fmt"
	"strconv"
)

const (
	// memoryLimitVariable is an environment variable with the memory limit of the container in bytes. The
	// shipped manifests set it by the downward API.
	memoryLimitVariable = "PREBIND_MEMORY_LIMIT"
	// goMemoryLimitVariable is the Go runtime's own, which wins.
	goMemoryLimitVariable = "GOMEMLIMIT"
)

// limitMemory makes the garbage collector work harder before the process reaches the limit of its container.
// A tenth of the limit is left for what the Go runtime does not count, such as the binary itself. set is
// debug.SetMemoryLimit.
func limitMemory(getenv func(string) string, set func(int64) int64) error {
	text := getenv(memoryLimitVariable)
	if text == "" || getenv(goMemoryLimitVariable) != "" {
		return nil
	}
	limit, err := strconv.ParseInt(text, 10, 64)
	if err != nil || limit <= 0 {
		return fmt.Errorf("%s: must be a positive number of bytes, got %q", memoryLimitVariable, text)
	}
	set(limit - limit/10)
	return nil
}
