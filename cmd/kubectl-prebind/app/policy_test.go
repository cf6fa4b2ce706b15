// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/prebind/prebind/cmd/internal/cli"
)

const policyLibrary = "../../../config/policies"

// policyFile writes a policy with the spec.
func policyFile(t *testing.T, spec string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "policy.yaml")
	content := "apiVersion: policy.prebind.dev/v1alpha1\nkind: BindPolicy\nmetadata: {name: rack}\nspec:\n  " + spec + "\n"
	require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
	return file
}

func TestPolicyCheck(t *testing.T) {
	valid := policyFile(t, "mutations: {annotations: [{key: rack, valueExpression: \"node.metadata.labels['rack']\"}]}")
	custom := policyFile(t, "resources: [{name: rack, apiVersion: example.com/v1, kind: Rack, nameExpression: node.metadata.name}]\n"+
		"  validations: [{expression: resources.rack.spec.missing == 'a'}]")
	crd := filepath.Join(t.TempDir(), "crd.yaml")
	require.NoError(t, os.WriteFile(crd, []byte(`apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: racks.example.com}
spec:
  group: example.com
  names: {kind: Rack, plural: racks}
  scope: Cluster
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {size: {type: integer}}}}}}
`), 0o600))
	cases := map[string]struct {
		reason string
		args   []string
		code   int
		says   []string
	}{
		"Ready": {
			reason: "a policy without problems is ready", args: []string{valid},
			says: []string{"policy.yaml:1: BindPolicy rack: ready\n", "1 of 1 policies ready, 0 warnings\n"},
		},
		"Unreadable": {reason: "a missing file has no result", args: []string{valid, "missing.yaml"}, code: exitUnreadable},
		"Library": {
			reason: "docs/policies.md has the command", args: []string{policyLibrary, "--key-prefixes=example.com,ray.io,topology.slinky.slurm.net"},
			says: []string{"11 of 11 policies ready, 0 warnings\n"},
		},
		"Problem": {
			reason: "a problem has its line and field", code: exitProblem,
			args: []string{policyFile(t, "validations: [{expression: 'node.status.foo == 1'}]")},
			says: []string{"policy.yaml:5: BindPolicy rack: CompileError: spec.validations[0].expression: ", "0 of 1 policies ready"},
		},
		"NoSchema": {
			reason: "without a schema, custom resources are not type-checked", args: []string{custom},
			says: []string{"policy.yaml:5: BindPolicy rack: warning: spec.resources[0].kind: kind not known"},
		},
		"Warning": {
			reason: "warnings are not problems", args: []string{custom, crd},
			says: []string{"policy.yaml:6: BindPolicy rack: warning: spec.validations[0].expression: ", "1 of 1 policies ready, 1 warnings"},
		},
		"Strict": {reason: "warnings are errors", args: []string{custom, crd, "--warnings-as-errors"}, code: exitProblem},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			out, err := run(t, append([]string{"policy", "check"}, tc.args...)...)
			assert.Equal(t, tc.code, cli.ExitCode(err), "%s: %v", tc.reason, err)
			for _, text := range tc.says {
				assert.Contains(t, out, text, tc.reason)
			}
		})
	}
}

func TestPolicyCheck_StandardInput(t *testing.T) {
	content, err := os.ReadFile(policyFile(t, "validations: [{expression: 'true'}]"))
	require.NoError(t, err)
	for input, code := range map[string]int{string(content): 0, "": exitUnreadable, "a: b: c": exitProblem} {
		var out bytes.Buffer
		cmd := NewCommand()
		cmd.SetArgs([]string{"policy", "check", "-"})
		cmd.SetIn(strings.NewReader(input))
		cmd.SetOut(&out)
		assert.Equal(t, code, cli.ExitCode(cmd.ExecuteContext(t.Context())), out.String())
	}
}

func TestPolicyTest(t *testing.T) {
	out, err := run(t, "policy", "test", policyLibrary)
	require.NoError(t, err)
	assert.Contains(t, out, "ok    "+policyLibrary+"/csi-drivers  16 cases\n")
	out, err = run(t, "policy", "test", "-v", policyLibrary+"/node-removal")
	require.NoError(t, err)
	assert.Contains(t, out, "--- PASS: ")

	file := filepath.Join(t.TempDir(), "report.xml")
	out, err = run(t, "policy", "test", policyLibrary+"/node-removal", "-o", "junit", "--output-file", file)
	require.NoError(t, err)
	assert.Contains(t, out, "ok    ", "the standard output is text")
	report, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Contains(t, string(report), `<testsuite name="`+policyLibrary+`/node-removal" tests="6" failures="0" errors="0"`)

	out, err = run(t, "policy", "test", policyLibrary+"/node-removal", "-o", "junit")
	require.NoError(t, err)
	assert.Equal(t, string(report), out)
}

func TestPolicyTest_Failures(t *testing.T) {
	file := policyFile(t, "validations: [{expression: 'false', message: never}]")
	require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(file), "rack_test.yaml"), []byte(`apiVersion: policy.prebind.dev/v1alpha1
kind: BindPolicyTest
objects:
- {apiVersion: v1, kind: Node, metadata: {name: node-1}}
- {apiVersion: v1, kind: Pod, metadata: {name: p}}
cases:
- {name: bound, expect: [{verdict: allowed}]}
`), 0o600))
	out, err := run(t, "policy", "test", filepath.Dir(file))
	assert.Equal(t, exitProblem, cli.ExitCode(err))
	assert.Contains(t, out, "--- FAIL: bound")
	assert.Contains(t, out, "got:      rejected (spec.validations[0]): never")
	assert.Contains(t, out, "1 case, 1 failed")

	invalid := "- {name: invalid, pod: x, expect: [{verdict: allowed}]}\n"
	test := filepath.Join(filepath.Dir(file), "rack_test.yaml")
	content, err := os.ReadFile(test)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(test, append(content, invalid...), 0o600))
	out, err = run(t, "policy", "test", filepath.Dir(file), "-o", "junit")
	assert.Equal(t, exitProblem, cli.ExitCode(err))
	assert.Contains(t, out, `tests="2" failures="1" errors="1"`)
	assert.Contains(t, out, `<failure message="BindPolicy rack: verdict">`)
	assert.Contains(t, out, `case "invalid"`)

	for reason, args := range map[string][]string{
		"a directory without tests is a mistake":      {t.TempDir()},
		"a missing directory has no result":           {filepath.Join(t.TempDir(), "missing")},
		"a file that cannot be written is an error":   {filepath.Dir(file), "--output-file", filepath.Join(t.TempDir(), "missing", "report")},
		"a policy file is not a directory with tests": {file},
		"one of several directories has no tests":     {filepath.Dir(file), t.TempDir()},
	} {
		_, err := run(t, append([]string{"policy", "test"}, args...)...)
		assert.Equal(t, exitUnreadable, cli.ExitCode(err), reason)
		assert.NotContains(t, err.Error(), "\n")
	}
}
