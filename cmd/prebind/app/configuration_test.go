// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/prebind/prebind/binder/plugins/device"
	"github.com/prebind/prebind/internal/configuration"
	"github.com/prebind/prebind/mutators/nodeinfo"
	"github.com/prebind/prebind/mutators/topology"
)

const fileHead = "apiVersion: config.prebind.dev/v1alpha1\nkind: PrebindConfiguration\n"

// fileWith writes a configuration file.
func fileWith(t *testing.T, content string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "config.yaml")
	require.NoError(t, os.WriteFile(name, []byte(content), 0o600))
	return name
}

// TestConfiguration checks that the file overrides the defaults, and that flags override the file.
func TestConfiguration(t *testing.T) {
	file := fileWith(t, fileHead+`
mode: Audit
mutators: ["*", node-info]
requiredMutators: [topology]
budgets:
  hold: 2s
  maxHolds: 7
arguments:
  topology:
    labels: [example.com/rack]
  device:
    nodeLocks: true
  node-info:
namespaces:
- names: [batch-*]
  mode: "Off"
- names: [slow]
  prebindTimeout: 20m
`)
	c, err := completed(t, "--config="+file, "--max-holds=9", "--topology-labels=a,b", "--mutators=topology")
	require.NoError(t, err)
	want := configuration.Default(newRegistry())
	want.Mode, want.Mutators, want.RequiredMutators = configuration.ModeAudit, []string{"topology"}, []string{"topology"}
	want.Budgets = configuration.Budgets{
		Hold: metav1.Duration{Duration: 2 * time.Second}, MaxHolds: 9,
		PreBindTimeout: metav1.Duration{Duration: 10 * time.Minute}, MaxPreBindTimeout: metav1.Duration{Duration: 30 * time.Minute},
	}
	want.Namespaces = []configuration.NamespaceRule{{Names: []string{"batch-*"}, Mode: configuration.ModeOff}, {Names: []string{"slow"}, PreBindTimeout: metav1.Duration{Duration: 20 * time.Minute}}}
	want.Arguments = c.Arguments
	encoded, err := want.Encode()
	require.NoError(t, err)
	got, err := c.Encode()
	require.NoError(t, err)
	assert.Equal(t, string(encoded), string(got))
	assert.Equal(t, &topology.Arguments{Labels: []string{"a", "b"}}, c.Arguments.Of("topology"), "a flag replaces the list of the file")
	assert.Equal(t, &device.Arguments{NodeLocks: true, NodeLockTimeout: metav1.Duration{Duration: 15 * time.Minute}}, c.Arguments.Of("device"), "fields that are not set keep their defaults")
	assert.Equal(t, &nodeinfo.Arguments{}, c.Arguments.Of("node-info"), "null means the defaults")

	defaults, err := completed(t)
	require.NoError(t, err)
	assert.NotEqual(t, defaults.Hash, c.Hash)
}

func TestConfiguration_Problems(t *testing.T) {
	cases := map[string]struct {
		reason, content string
		args            []string
		want            []string
	}{
		"Fields": {
			reason: "all unknown fields are reported together", content: "mutator: []\narguments:\n  devices: {}\n  device:\n    locks: true\n",
			want: []string{
				`FILE: unknown field "mutator"`, `FILE: unknown field "arguments.devices"`, `FILE: unknown field "arguments.device.locks"`,
			},
		},
		"Values": {
			reason: "all invalid values are reported together", content: "budgets:\n  hold: 0s\nprebindPlugins: [volumes]\narguments:\n  resource-claims:\n    bindingTimeout: 0s\n",
			want: []string{
				`FILE: budgets.hold: Invalid value: "0s": must be positive`,
				`FILE: prebindPlugins: Invalid value: "volumes": unknown PreBind plugin "volumes": must be one of announce, node-state, start-limit, device, resource-claims, policy, volumebinding, node-ready`,
				`FILE: arguments.resource-claims.bindingTimeout: Invalid value: "0s": must be positive`,
			},
		},
		"FlagIsWrong": {reason: "a flag overrides the file, so the error names the flag", content: "budgets:\n  hold: 1s\n", args: []string{"--hold=-1s"}, want: []string{`--hold: Invalid value: "-1s": must be positive`}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			file := fileWith(t, fileHead+tc.content)
			_, err := completed(t, append(tc.args, "--config="+file)...)
			require.Error(t, err, tc.reason)
			for _, want := range tc.want {
				assert.Contains(t, err.Error(), strings.ReplaceAll(want, "FILE", file), tc.reason)
			}
			assert.Equal(t, len(tc.want), strings.Count(err.Error(), file)+strings.Count(err.Error(), "--"), "there are no other problems: %v", err)
			assert.NotContains(t, err.Error(), "\n")
		})
	}
}

// TestConfiguration_EveryFieldHasAFlag checks that each field except namespaces has a flag. The description of the flag is
// also that of the field in the file.
func TestConfiguration_EveryFieldHasAFlag(t *testing.T) {
	c := configuration.Default(newRegistry())
	var sets cliflag.NamedFlagSets
	c.AddFlags(&sets)
	usages := map[string]bool{}
	for _, fs := range sets.FlagSets {
		fs.VisitAll(func(f *pflag.Flag) { usages[f.Usage] = true })
	}
	encoded, err := c.Encode()
	require.NoError(t, err)
	var document yaml.Node
	require.NoError(t, yaml.Unmarshal(encoded, &document))
	var visit func(node *yaml.Node)
	visit = func(node *yaml.Node) {
		for pair := range slices.Chunk(node.Content, 2) {
			switch name, value := pair[0].Value, pair[1]; {
			case value.Kind == yaml.MappingNode:
				visit(value)
			case name == "apiVersion" || name == "kind" || name == "namespaces":
			default:
				usage := strings.ReplaceAll(strings.TrimPrefix(pair[0].HeadComment, "# "), "\n# ", " ")
				assert.True(t, usages[usage], "%s has a flag", name)
				delete(usages, usage)
			}
		}
	}
	visit(document.Content[0])
	assert.Empty(t, usages, "every flag has a field")
}

func TestConfigCommands(t *testing.T) {
	example, err := run(t, "config", "defaults")
	require.NoError(t, err)
	assert.Contains(t, example, "# Maximum number of calls that this replica holds at a time.")
	file := fileWith(t, example)
	out, err := run(t, "config", "check", file)
	require.NoError(t, err, "the example is valid")
	assert.Equal(t, file+" is valid: mode Enforce, mutators topology, PreBind plugins node-state, device, resource-claims, policy, volumebinding\n", out)
	printed, err := completed(t, "--config="+file)
	require.NoError(t, err)
	defaults, err := completed(t)
	require.NoError(t, err)
	assert.Equal(t, defaults.Hash, printed.Hash, "the printed file has the defaults")

	_, err = run(t, "config", "check", fileWith(t, fileHead+"mode: No\nhold: 1s\nbudgets: {maxHold: 1}\n"))
	require.Error(t, err)
	lines := strings.Split(err.Error(), "\n")
	assert.Len(t, lines, 2, "each problem is one line")
	_, err = run(t, "config", "check", filepath.Join(t.TempDir(), "none"))
	require.ErrorContains(t, err, "no such file")
	schema, err := run(t, "config", "schema")
	require.NoError(t, err)
	assert.Contains(t, schema, `"description": "Maximum number of calls that this replica holds at a time.`)

	help, err := run(t, "config")
	require.EqualError(t, err, "missing subcommand of 'prebind config'")
	assert.Contains(t, help, "check ")
}

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
	r := newRegistry()
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
