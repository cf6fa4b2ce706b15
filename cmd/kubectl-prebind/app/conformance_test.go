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
