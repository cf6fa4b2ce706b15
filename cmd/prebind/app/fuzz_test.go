// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/prebind/prebind/internal/configuration"
)

// FuzzConfiguration checks files with arguments of all mutators and plugins. A valid file is
// unchanged after it is encoded and read again. The error for an invalid file has a line for each
// problem.
func FuzzConfiguration(f *testing.F) {
	for _, seed := range []string{
		"", "mode: Audit\n", "mutators: [\"*\", -topology]\nprebindPlugins: []\n", "budgets: {hold: 1ns, maxHolds: 256}\n",
		"namespaces:\n- names: [\"[\", team-*]\n  mode: Off\n- {}\n", "namespaces: [{names: [a], prebindTimeout: 1h, maxPrebindTimeout: 1m}]\n",
		"arguments:\n  topology: {labels: [\"*\", a=b, \"c/*=d-*\"], path: [a], podLabels: [\"*\"]}\n  node-info: {annotations: [a=b]}\n",
		"arguments:\n  node-state: {checks: [ready], maxWait: 1s}\n  device: {nodeLocks: true, nodeLockTimeout: 0s}\n",
		"arguments: {resource-claims: {bindingTimeout: -1s}}\n", "requiredMutators: [other, topology]\n",
		"a: &a [*a]\n", "mode: &x Audit\nmutators: [*x]\n", "\xff", "mode: \"\\u2028\"\n",
	} {
		f.Add([]byte(seed))
	}
	r := newRegistry().Components()
	none := pflag.NewFlagSet("none", pflag.ContinueOnError)
	f.Fuzz(func(t *testing.T, content []byte) {
		c, err := configuration.Parse(r, "file", append([]byte(fileHead), content...), none)
		if err != nil {
			for line := range strings.SplitSeq(err.Error(), "\n") {
				assert.NotEmpty(t, strings.TrimSpace(line), "%q", err)
			}
			return
		}
		encoded, err := c.Encode()
		require.NoError(t, err)
		again, err := configuration.Parse(r, "file", encoded, none)
		require.NoError(t, err, "%s", encoded)
		assert.Equal(t, c.Hash, again.Hash, "%s", encoded)
	})
}
