// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/prebind/prebind/internal/configuration"
)

// parsed returns the options of serve with these flags.
func parsed(t *testing.T, args ...string) (*serveOptions, *pflag.FlagSet) {
	t.Helper()
	o := newServeOptions(newRegistry())
	fs := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	sets := o.flags()
	for _, section := range sets.Order {
		fs.AddFlagSet(sets.FlagSets[section])
	}
	require.NoError(t, fs.Parse(args))
	return o, fs
}

// completed returns the configuration of serve with these flags.
func completed(t *testing.T, args ...string) (*configuration.PrebindConfiguration, error) {
	t.Helper()
	o, fs := parsed(t, args...)
	return o.complete(fs)
}

func TestComplete(t *testing.T) {
	cases := map[string]struct {
		reason string
		args   []string
		// says contains parts of the error. It is empty for no error.
		says []string
	}{
		"Default":          {reason: "the defaults are valid"},
		"NoMetrics":        {reason: "0 switches metrics off", args: []string{"--metrics-bind-address=0"}},
		"AllOff":           {reason: "everything can be switched off", args: []string{"--mutators=", "--prebind-plugins=", "--topology-labels="}},
		"WebhookAddress":   {reason: "the address must have a port", args: []string{"--webhook-bind-address=9443"}, says: []string{"--webhook-bind-address", `"9443"`}},
		"CertDir":          {reason: "the webhook needs a certificate", args: []string{"--cert-dir="}, says: []string{"--cert-dir"}},
		"SelfManaged":      {reason: "the defaults are valid", args: []string{"--self-managed-certs"}},
		"CertsTwice":       {reason: "the flags are mutually exclusive", args: []string{"--self-managed-certs", "--cert-dir=/tls"}, says: []string{"--self-managed-certs", "--cert-dir"}},
		"CertService":      {reason: "the value must be the name of a Service", args: []string{"--self-managed-certs", "--webhook-service=a.b"}, says: []string{"--webhook-service", "a.b"}},
		"CertConfig":       {reason: "the value must be the name of an object", args: []string{"--self-managed-certs", "--webhook-configuration=A"}, says: []string{"--webhook-configuration"}},
		"ClientNames":      {reason: "names require a CA", args: []string{"--client-allowed-names=a"}, says: []string{"--client-allowed-names", "--client-ca-file"}},
		"ShutdownTimeout":  {reason: "the value must be positive", args: []string{"--shutdown-timeout=0s"}, says: []string{"--shutdown-timeout"}},
		"Required":         {reason: "a mutator that is on can be required", args: []string{"--required-mutators=topology"}},
		"NoNodeState":      {reason: "all checks can be switched off", args: []string{"--node-state-checks="}},
		"StartLimitWait":   {reason: "the wait must not exceed the limit of an attempt", args: []string{"--start-limit-wait=1h"}, says: []string{"--start-limit-wait", "1h"}},
		"NodeStateTooLong": {reason: "the wait must not exceed the limit of an attempt", args: []string{"--node-state-max-wait=1h"}, says: []string{"--node-state-max-wait", "1h"}},
		"DebugLoopback":    {reason: "an IPv4 loopback address is valid", args: []string{"--debug-bind-address=127.0.0.1:6060"}},
		"DebugLocalhost":   {reason: "the name localhost is valid", args: []string{"--debug-bind-address=localhost:6060"}},
		"DebugEverywhere":  {reason: "anonymous clients", args: []string{"--debug-bind-address=0.0.0.0:6060"}, says: []string{"--debug-bind-address: must be a loopback"}},
		"DebugName":        {reason: "any address", args: []string{"--debug-bind-address=a.com:1"}, says: []string{"--debug-bind-address: must be a loopback"}},
		"DebugNoPort":      {reason: "there is no port", args: []string{"--debug-bind-address=127.0.0.1"}, says: []string{"--debug-bind-address: must be an address"}},
		"NoFile":           {reason: "a missing file is an error", args: []string{"--config=testdata/none.yaml"}, says: []string{"--config", "none.yaml", "no such file"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := completed(t, tc.args...)
			if len(tc.says) == 0 {
				require.NoError(t, err, tc.reason)
				return
			}
			require.Error(t, err, tc.reason)
			for _, says := range tc.says {
				assert.Contains(t, err.Error(), says, tc.reason)
			}
			assert.NotContains(t, err.Error(), "\n", "an error is one line")
		})
	}
}

// TestListen checks that the error names the flag of an address that is in use.
func TestListen(t *testing.T) {
	taken, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { assert.NoError(t, taken.Close()) }()
	local := []string{"--webhook-bind-address=127.0.0.1:0", "--health-probe-bind-address=127.0.0.1:0", "--metrics-bind-address=127.0.0.1:0"}
	o, _ := parsed(t, local...)
	open, err := o.listen(t.Context())
	require.NoError(t, err)
	assert.Len(t, open, 3, "the debug server is off by default")
	for _, l := range open {
		require.NoError(t, l.Close())
	}
	for _, flag := range []string{"webhook-bind-address", "health-probe-bind-address", "metrics-bind-address", "debug-bind-address"} {
		o, _ := parsed(t, append(local, "--"+flag+"="+taken.Addr().String())...)
		_, err = o.listen(t.Context())
		require.ErrorContains(t, err, "--"+flag+": ")
		require.ErrorContains(t, err, "address already in use")
		assert.NotContains(t, err.Error(), "\n")
	}
}

// The servers of probes and metrics keep no idle or slow connection.
func TestPlainServer_Connections(t *testing.T) {
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := plainServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	for name, request := range map[string]string{"Idle": "", "Slow": "GET / HT", "Answered": "GET / HTTP/1.1\r\nHost: a\r\n\r\n"} {
		t.Run(name, func(t *testing.T) {
			conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", listener.Addr().String())
			require.NoError(t, err)
			defer func() { assert.NoError(t, conn.Close()) }()
			_, err = io.WriteString(conn, request)
			require.NoError(t, err)
			require.NoError(t, conn.SetReadDeadline(time.Now().Add(30*time.Second)))
			_, err = bufio.NewReader(conn).WriteTo(io.Discard)
			assert.NoError(t, err, "the server should close the connection")
		})
	}
	require.NoError(t, server.Close())
	assert.ErrorIs(t, <-ended, http.ErrServerClosed)
}

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
		"Underscores":   {reason: "flags accept _ instead of -", args: []string{"serve", "--max_holds=0"}, says: "--max-holds"},
		"Command":       {reason: "a command is suggested", args: []string{"serv"}, says: `unknown command "serv" for "prebind"; did you mean "serve"?`},
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

// TestRegistry checks that names are unique, and that all mutators and plugins can be built with default arguments.
func TestRegistry(t *testing.T) {
	r := newRegistry()
	require.NoError(t, r.Check())
	c := configuration.Default(r)
	for _, m := range r.Mutators {
		built, err := m.New(c.Arguments.Of(m.Name))
		require.NoError(t, err)
		assert.Equal(t, m.Name, built.Name())
	}
	var order []string
	for _, p := range r.Plugins {
		order = append(order, p.Name)
		assert.NotContains(t, p.Watches, nil)
	}
	assert.Equal(t, []string{"announce", "node-state", "start-limit", "device", "resource-claims", "policy", "volumebinding", "node-ready"}, order,
		"announce starts before the waits of the others, a rejection of device prevents tasks, plugins that cannot roll back come late, and node-ready reads the claims after volumebinding")
	assert.Equal(t, "mode Enforce, mutators topology, PreBind plugins node-state, device, resource-claims, policy, volumebinding", c.Summary())
}
