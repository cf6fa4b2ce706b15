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
	valid := "mutations: {annotations: [{key: rack, valueExpression: \"node.metadata.labels['rack']\"}]}"
	cases := map[string]struct {
		reason string
		spec   string
		flags  []string
		code   int
		says   []string
	}{
		"Ready":      {reason: "a policy without problems is ready", spec: valid, says: []string{"policy.yaml:1: BindPolicy rack: ready\n", "1 of 1 policies ready, 0 warnings\n"}},
		"Problem":    {reason: "a problem has its line and field", spec: "validations: [{expression: 'node.status.foo == 1'}]", code: exitProblem, says: []string{"policy.yaml:5: BindPolicy rack: CompileError: spec.validations[0].expression: ", "0 of 1 policies ready"}},
		"Unreadable": {reason: "a missing file has no result", spec: valid, flags: []string{"missing.yaml"}, code: exitUnreadable},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			out, err := run(t, append([]string{"policy", "check", policyFile(t, tc.spec)}, tc.flags...)...)
			assert.Equal(t, tc.code, cli.ExitCode(err), "%s: %v", tc.reason, err)
			for _, text := range tc.says {
				assert.Contains(t, out, text, tc.reason)
			}
		})
	}
}

func TestPolicyCheck_Warnings(t *testing.T) {
	dir := t.TempDir()
	policy := policyFile(t, "resources: [{name: rack, apiVersion: example.com/v1, kind: Rack, nameExpression: node.metadata.name}]\n  validations: [{expression: resources.rack.spec.missing == 'a'}]")
	crd := filepath.Join(dir, "crd.yaml")
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

	out, err := run(t, "policy", "check", policy)
	require.NoError(t, err, out)
	assert.Contains(t, out, "policy.yaml:5: BindPolicy rack: warning: spec.resources[0].kind: kind not known", "without a schema, custom resources are not type-checked")

	out, err = run(t, "policy", "check", policy, crd)
	require.NoError(t, err, "warnings are not problems")
	assert.Contains(t, out, "policy.yaml:6: BindPolicy rack: warning: spec.validations[0].expression: ")
	assert.Contains(t, out, "1 of 1 policies ready, 1 warnings")

	_, err = run(t, "policy", "check", policy, crd, "--warnings-as-errors")
	assert.Equal(t, exitProblem, cli.ExitCode(err))
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

// The command of docs/policies.md.
func TestPolicyCheck_Library(t *testing.T) {
	out, err := run(t, "policy", "check", policyLibrary, "--key-prefixes=example.com,ray.io,topology.slinky.slurm.net")
	require.NoError(t, err, out)
	assert.Contains(t, out, "11 of 11 policies ready, 0 warnings\n")
}

func TestPolicyTest(t *testing.T) {
	out, err := run(t, "policy", "test", policyLibrary)
	require.NoError(t, err)
	assert.Contains(t, out, "ok    "+policyLibrary+"/csi-drivers  15 cases\n")
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
