// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestLimitMemory(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		env    map[string]string
		want   int64
		err    string
	}{
		"Container": {reason: "the shipped limit of 512Mi, less a tenth", env: map[string]string{memoryLimitVariable: "536870912"}, want: 483183821},
		"Explicit": {
			reason: "an operator who sets GOMEMLIMIT gets it",
			env:    map[string]string{memoryLimitVariable: "536870912", goMemoryLimitVariable: "300MiB"},
		},
		"None":     {reason: "a process outside a container has no limit"},
		"Quantity": {reason: "the downward API writes bytes", env: map[string]string{memoryLimitVariable: "512Mi"}, err: `PREBIND_MEMORY_LIMIT: must be a positive number of bytes, got "512Mi"`},
		"Zero":     {reason: "a limit of zero would stop the process from working", env: map[string]string{memoryLimitVariable: "0"}, err: `PREBIND_MEMORY_LIMIT: must be a positive number of bytes, got "0"`},
	} {
		t.Run(name, func(t *testing.T) {
			var got int64
			err := limitMemory(func(key string) string { return tc.env[key] }, func(limit int64) int64 {
				got = limit
				return 0
			})
			if tc.err != "" {
				assert.EqualError(t, err, tc.err, tc.reason)
			} else {
				assert.NoError(t, err, tc.reason)
			}
			assert.Equal(t, tc.want, got, tc.reason)
		})
	}
}
