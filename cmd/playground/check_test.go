// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/prebind/prebind/cmd/kubectl-prebind/app"
)

// commandLine returns the output of kubectl prebind policy test for the policy and the test.
func commandLine(t *testing.T, policies, test string) string {
	t.Helper()
	t.Chdir(t.TempDir())
	require.NoError(t, os.WriteFile(policyFile, []byte(policies), 0o600))
	require.NoError(t, os.WriteFile(testFile, []byte(test), 0o600))
	var out strings.Builder
	command := app.NewCommand()
	command.SetOut(&out)
	command.SetArgs([]string{"policy", "test", "."})
	_ = command.Execute() // It fails if the test fails. The output shows this.
	return out.String()
}

func TestCheck_Library(t *testing.T) {
	all, err := examples("../../config/policies")
	require.NoError(t, err)
	names := map[string]bool{}
	for _, e := range all {
		t.Run(e.Name, func(t *testing.T) {
			names[e.Name] = true
			assert.True(t, strings.HasPrefix(e.Policy, "#"), "a comment describes the policy: %s", e.Policy)
			r := check(t.Context(), e.Policy, e.Test)
			assert.Equal(t, commandLine(t, e.Policy, e.Test), r.Text)
			assert.True(t, strings.HasPrefix(r.Text, "ok "), r.Text)
			assert.Empty(t, r.Errors)
			assert.Empty(t, r.Warnings)
			assert.NotEmpty(t, r.Cases)
			for _, c := range r.Cases {
				assert.Empty(t, c.Failures)
				assert.Len(t, c.Results, 1)
			}
		})
	}
	assert.True(t, names["csi-drivers"] && names["rack-awareness"] && names["rack-awareness/kafka"], names)
	assert.Len(t, names, len(all), "names are unique")
}

const (
	head    = "apiVersion: policy.prebind.dev/v1alpha1\nkind: BindPolicy\nmetadata: {name: rack}\nspec:\n"
	valid   = head + "  validations: [{expression: 'true'}]\n"
	objects = `apiVersion: policy.prebind.dev/v1alpha1
kind: BindPolicyTest
objects:
  - {apiVersion: v1, kind: Node, metadata: {name: node-1, labels: {rack: r1}}}
  - {apiVersion: v1, kind: Pod, metadata: {name: web-0}}
`
	allowed = objects + "cases: [{name: a, expect: [{verdict: allowed}]}]\n"
)

// TestCheck compares reports with the output of the command for policies and tests with mistakes.
func TestCheck(t *testing.T) {
	cases := map[string]struct {
		reason       string
		policy, test string
		want         []message
		says         string
	}{
		"Compile": {
			reason: "a mistake in an expression has its line and field", policy: head + "  validations:\n    - expression: node.foo == 1\n", test: allowed,
			want: []message{{policyFile, 6, "BindPolicy rack: spec.validations[0].expression: "}},
		},
		"Several": {
			reason: "all mistakes are reported", policy: head + "  validations:\n    - expression: node.foo == 1\n    - expression: pod.foo == 1\n", test: allowed,
			want: []message{{policyFile, 6, "BindPolicy rack: spec.validations[0]."}, {policyFile, 7, "BindPolicy rack: spec.validations[1]."}},
		},
		"YAML": {
			reason: "the policy is not YAML", policy: head + "  validations: [\n", test: allowed,
			want: []message{{policyFile, 5, ""}, {testFile, 1, "the directory contains no BindPolicy"}},
		},
		"Test": {
			reason: "the test is not valid", policy: valid, test: objects + "cases: [{name: a, expect: [{verdict: accepted}]}]\n",
			want: []message{{testFile, 6, "cases[0].expect[0].verdict: "}},
		},
		"Invalid": {
			reason: "a case lacks its objects", policy: valid, test: strings.Replace(allowed, "name: a,", "name: a, node: other,", 1),
			want: []message{{testFile, 6, `case "a": node: objects contain no Node other`}},
		},
		"Failure": {
			reason: "a case fails", policy: head + "  validations: [{expression: 'false', message: No.}]\n", test: allowed,
			says: "expected: allowed\n      got:      rejected (spec.validations[0]): No.",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			r := check(t.Context(), tc.policy, tc.test)
			assert.Equal(t, commandLine(t, tc.policy, tc.test), r.Text, tc.reason)
			assert.Contains(t, r.Text, tc.says, tc.reason)
			require.Len(t, r.Errors, len(tc.want), "%s: %v", tc.reason, r.Errors)
			for i, want := range tc.want {
				got := r.Errors[i]
				assert.True(t, want.File == got.File && want.Line == got.Line && strings.HasPrefix(got.Text, want.Text), "%s: %v", tc.reason, got)
			}
		})
	}
}

func TestCheck_Warnings(t *testing.T) {
	r := check(t.Context(), head+"  resources: [{name: rack, apiVersion: example.com/v1, kind: Rack, nameExpression: node.metadata.name}]\n", allowed)
	require.Len(t, r.Warnings, 1)
	assert.Equal(t, message{policyFile, 5, "spec.resources[0].kind: kind not known: fields are not checked; pass its CustomResourceDefinition"}, r.Warnings[0])
}
