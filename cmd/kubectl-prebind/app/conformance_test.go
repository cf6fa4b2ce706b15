// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/prebind/prebind/cmd/internal/cli"
	"github.com/prebind/prebind/cmd/kubectl-prebind/internal/conformance"
)

// TestConformance_Usage checks that a wrong command line is an error before the cluster is contacted, with the exit code that does
// not mean that a check fails.
func TestConformance_Usage(t *testing.T) {
	cases := map[string]struct {
		reason string
		args   []string
		says   string
	}{
		"Argument":   {reason: "the command accepts only flags", args: []string{"burst"}, says: `unknown command "burst" for "kubectl prebind conformance"`},
		"NoCheck":    {reason: "a typo must not look like a success", args: []string{"--run=burts"}, says: `--run: no check matches "burts"; the checks are bind, annotations, binding-annotations, uid, wait, refused, invalid, internal, stale, volume, rollback, workers, burst`},
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
			assert.Equal(t, 64, cli.ExitCode(err), tc.reason)
			assert.NotContains(t, err.Error(), "\n", "an error is one line")
			assert.Empty(t, out)
		})
	}
}

// TestConformance_ExitCode checks the exit code of a run from the results of its checks.
func TestConformance_ExitCode(t *testing.T) {
	cases := map[string]struct {
		reason   string
		statuses []conformance.Status
		want     int
	}{
		"Pass":     {reason: "a skipped check is not a failure", statuses: []conformance.Status{conformance.Pass, conformance.Skipped}, want: 0},
		"Fail":     {reason: "a failure is proven", statuses: []conformance.Status{conformance.NoResult, conformance.Errored, conformance.Fail}, want: 1},
		"Error":    {reason: "a repetition can have the same error", statuses: []conformance.Status{conformance.NoResult, conformance.Errored}, want: 2},
		"NoResult": {reason: "the run can be repeated when the cluster has less load", statuses: []conformance.Status{conformance.Pass, conformance.NoResult, conformance.Skipped}, want: 3},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			report := &conformance.Report{}
			for _, s := range tc.statuses {
				report.Results = append(report.Results, conformance.Result{Status: s})
			}
			err := outcome(report)
			if tc.want == 0 {
				require.NoError(t, err, tc.reason)
				return
			}
			assert.Equal(t, tc.want, cli.ExitCode(cli.WithCode(exitIncomplete, err)), tc.reason)
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
