// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/prebind/prebind/cmd/internal/cli"
	"github.com/prebind/prebind/cmd/kubectl-prebind/internal/conformance"
)

// run executes the command and returns its output.
func run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd := NewCommand()
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

// TestUsage checks that a wrong command line is an error before the cluster is contacted, with the exit code that means no result.
func TestUsage(t *testing.T) {
	cases := map[string]struct {
		reason string
		args   []string
		says   string
	}{
		"UnknownCommand":   {reason: "a similar command is suggested", args: []string{"explan"}, says: `unknown command "explan" for "kubectl prebind"; did you mean "explain"?`},
		"Frobnicate":       {reason: "no command is similar", args: []string{"policy", "frobnicate"}, says: `unknown command "frobnicate" for "kubectl prebind policy"`},
		"UnknownFlag":      {reason: "an unknown flag is an error", args: []string{"status", "--frobnicate"}, says: "--frobnicate"},
		"ExplainPod":       {reason: "a bind has a pod", args: []string{"explain"}, says: "accepts 1 arg(s), received 0"},
		"Output":           {reason: "formats are known", args: []string{"status", "-o=xml"}, says: "--output: must be text, json or yaml"},
		"PolicyFile":       {reason: "check reads files", args: []string{"policy", "check"}, says: "requires at least 1 arg(s)"},
		"PolicyOutput":     {reason: "formats are known", args: []string{"policy", "test", "-o=xml", "."}, says: "--output: must be text or junit"},
		"PolicyPrefix":     {reason: "a prefix is a DNS name", args: []string{"policy", "check", "--key-prefixes=%", "x"}, says: "--key-prefixes"},
		"ConformanceFlags": {reason: "the expression is invalid", args: []string{"conformance", "--scheduler-name=x", "--run=("}, says: "--run: error parsing regexp"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Setenv("KUBECONFIG", "testdata/no-such-file")
			out, err := run(t, tc.args...)
			require.ErrorContains(t, err, tc.says, tc.reason)
			assert.Equal(t, 64, cli.ExitCode(err), tc.reason)
			assert.NotContains(t, err.Error(), "\n", "an error is one line")
			assert.Empty(t, out, "only main prints the error, and the usage is not printed")
		})
	}
}

// TestNoKubeconfig checks that each command that connects to the cluster shows how to name a kubeconfig, with its usual exit code.
func TestNoKubeconfig(t *testing.T) {
	cases := map[string]struct {
		args []string
		code int
	}{
		"Explain":     {args: []string{"explain", "web"}, code: exitUnknown},
		"Status":      {args: []string{"status"}, code: 1},
		"Conformance": {args: []string{"conformance", "--scheduler-name=x"}, code: exitIncomplete},
		"Cleanup":     {args: []string{"conformance", "--cleanup"}, code: exitIncomplete},
		"Unregister":  {args: []string{"unregister"}, code: 1},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Setenv("KUBECONFIG", "testdata/no-such-file")
			t.Setenv("KUBERNETES_SERVICE_HOST", "")
			out, err := run(t, tc.args...)
			require.EqualError(t, err, "no kubeconfig: set --kubeconfig or the environment variable KUBECONFIG to a kubeconfig file, or create the default "+clientcmd.RecommendedHomeFile)
			assert.Equal(t, tc.code, cli.ExitCode(err))
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
			assert.Equal(t, tc.want, cli.ExitCode(cli.WithCode(exitIncomplete, outcome(report))), tc.reason)
		})
	}
}
