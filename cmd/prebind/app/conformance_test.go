// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestConformance_Usage checks that a wrong command line is an error before the cluster is contacted, with the exit code that does
// not mean that a check fails.
func TestConformance_Usage(t *testing.T) {
	cases := map[string]struct {
		reason string
		args   []string
		says   string
	}{
		"Argument":   {reason: "the command accepts only flags", args: []string{"burst"}, says: `unknown command "burst" for "prebind conformance"`},
		"NoCheck":    {reason: "a typo must not look like a success", args: []string{"--run=burts"}, says: `--run: no check matches "burts"; the checks are bind, annotations, binding-annotations, uid, wait, refused, invalid, stale, volume, rollback, workers, burst`},
		"Expression": {reason: "the expression is invalid", args: []string{"--run=("}, says: "--run: error parsing regexp"},
		"OneNode":    {reason: "some checks need two nodes", args: []string{"--nodes=node-1"}, says: "--nodes: must name at least two nodes, got node-1"},
		"Namespace":  {reason: "the command creates its namespaces", args: []string{"-n", "shop"}, says: "unknown shorthand flag: 'n'"},
		"Password":   {reason: "API servers have no basic authentication", args: []string{"--username=x"}, says: "unknown flag: --username"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Setenv("KUBECONFIG", "testdata/no-such-file")
			out, err := run(t, append([]string{"conformance", "--scheduler-name=x"}, tc.args...)...)
			require.ErrorContains(t, err, tc.says, tc.reason)
			assert.Equal(t, 2, ExitCode(err), tc.reason)
			assert.NotContains(t, err.Error(), "\n", "an error is one line")
			assert.Empty(t, out)
		})
	}
}

func TestConformance_Help(t *testing.T) {
	out, err := run(t, "conformance", "--help")
	require.NoError(t, err)
	assert.Regexp(t, `(?m)^  bind +Bind a pod`, out)
	assert.Regexp(t, `(?m)^  burst +Bind many pods`, out)
	for _, flag := range []string{"--namespace ", "--username", "--password", "--prebind-namespace"} {
		assert.NotContains(t, out, flag, "a flag without an effect")
	}
	assert.Contains(t, out, "--as ")
}
