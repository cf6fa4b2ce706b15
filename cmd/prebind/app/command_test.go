// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/prebind/prebind/cmd/internal/cli"
	"github.com/prebind/prebind/internal/configuration"
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

func TestCommand_Errors(t *testing.T) {
	cases := map[string]struct {
		reason string
		args   []string
		says   string
	}{
		"UnknownFlag":   {reason: "an unknown flag is an error", args: []string{"serve", "--frobnicate"}, says: "--frobnicate"},
		"ServeArgument": {reason: "serve accepts only flags", args: []string{"serve", "now"}, says: `"now"`},
		"PluginsArg":    {reason: "plugins accepts no arguments", args: []string{"plugins", "all"}, says: `"all"`},
		"BadDuration":   {reason: "a duration has a unit", args: []string{"serve", "--hold=5"}, says: "--hold"},
		"BadNumber":     {reason: "the value must be a number", args: []string{"serve", "--max-holds=many"}, says: "--max-holds"},
		"BadLogFormat":  {reason: "logging flags are validated as well", args: []string{"serve", "--logging-format=xml"}, says: "xml"},
		"NoCertificate": {reason: "the certificate is read before anything is started", args: []string{"serve", "--cert-dir=testdata/no-such-folder"}, says: "--cert-dir"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			out, err := run(t, tc.args...)
			require.ErrorContains(t, err, tc.says, tc.reason)
			assert.NotContains(t, err.Error(), "\n", "an error is one line")
			assert.Empty(t, out, "only main prints the error, and the usage is not printed")
		})
	}
}

func TestFlags_Underscores(t *testing.T) {
	_, err := run(t, "serve", "--max_holds=0")
	assert.ErrorContains(t, err, "--max-holds", "flags accept _ instead of -, as in Kubernetes components")
}

func TestVersion(t *testing.T) {
	out, err := run(t, "version")
	require.NoError(t, err)
	assert.Equal(t, cli.Version()+"\n", out)
}

func TestPlugins(t *testing.T) {
	out, err := run(t, "plugins")
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	require.Len(t, lines, 1+len(RegisteredMutators())+len(RegisteredPlugins()), "the output has a header and a line for each mutator and plugin")
	for i, word := range []string{"NAME", "TYPE", "DEFAULT", "ANNOTATIONS", "DESCRIPTION"} {
		assert.Equal(t, word, strings.Fields(lines[0])[i])
	}
	rest := lines[1:]
	for _, s := range RegisteredMutators() {
		assert.Equal(t, []string{s.Name, "mutator", onOff(s.On), s.Name + ".prebind.dev/…"}, strings.Fields(rest[0])[:4])
		rest = rest[1:]
	}
	for _, s := range RegisteredPlugins() {
		assert.Equal(t, []string{s.Name, "PreBind", onOff(s.On)}, strings.Fields(rest[0])[:3])
		assert.Contains(t, rest[0], s.Description)
		rest = rest[1:]
	}
}

// TestRegistry checks that names are unique, and that all mutators and plugins can be built with default arguments.
func TestRegistry(t *testing.T) {
	seen := map[string]bool{}
	r := newRegistry()
	require.NoError(t, r.Check())
	c := configuration.Default(r.Components())
	for _, m := range r.Mutators {
		assert.False(t, seen[m.Name], m.Name)
		seen[m.Name] = true
		built, err := m.New(c.Arguments.Of(m.Name))
		require.NoError(t, err)
		assert.Equal(t, m.Name, built.Name())
	}
	var order []string
	for _, p := range r.Plugins {
		assert.False(t, seen[p.Name], "names are unique, because they are prefixes of annotations: %s", p.Name)
		seen[p.Name] = true
		order = append(order, p.Name)
		assert.NotContains(t, p.Watches, nil)
	}
	assert.Equal(t, []string{"announce", "node-state", "node-ready", "policy", "start-limit", "device", "resource-claims", "volumebinding"}, order,
		"announce starts before the waits of the others, then come plugins that only read, and plugins that cannot roll back come last")
	assert.Equal(t, "mode Enforce, mutators topology, PreBind plugins node-state, policy, device, resource-claims, volumebinding", c.Summary())
}

func TestUnknownCommand(t *testing.T) {
	_, err := run(t, "serv")
	require.EqualError(t, err, `unknown command "serv" for "prebind"; did you mean "serve"?`)
	assert.Equal(t, 64, cli.ExitCode(err))
}
