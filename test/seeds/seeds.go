// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package seeds gives seeds to tests that make random choices.
package seeds

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// variable is the environment variable that chooses other seeds: a number for one seed, or
// "random" for as many random ones.
const variable = "PREBIND_SEED"

// Of returns n seeds. They are the same at each run, so that chance does not decide whether
// a change passes; PREBIND_SEED chooses others. A test names its seed where it fails.
func Of(t testing.TB, n int) []uint64 {
	t.Helper()
	text := os.Getenv(variable)
	if text != "" && text != "random" {
		seed, err := strconv.ParseUint(text, 10, 64)
		require.NoError(t, err, "%s must be a number, or random", variable)
		return []uint64{seed}
	}
	all := make([]uint64, n)
	for i := range all {
		all[i] = uint64(i) //nolint:gosec // It is not negative.
		if text == "random" {
			all[i] = rand.Uint64() //nolint:gosec // Not a secret.
		}
	}
	return all
}
