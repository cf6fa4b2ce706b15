// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/prebind/prebind/cmd/internal/cli"
	"github.com/prebind/prebind/internal/configuration"
)

// completed returns the configuration of serve with these flags.
func completed(t *testing.T, args ...string) (*configuration.Loaded, error) {
	t.Helper()
	o := newServeOptions(newRegistry())
	fs := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	sets := o.flags()
	for _, section := range sets.Order {
		fs.AddFlagSet(sets.FlagSets[section])
	}
	require.NoError(t, fs.Parse(args))
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
		"Mode":             {reason: "the error lists the known values", args: []string{"--mode=audit"}, says: []string{"--mode", `"audit"`, "Audit"}},
		"MaxTimeout":       {reason: "the default must not exceed the limit", args: []string{"--max-prebind-timeout=1m"}, says: []string{"--max-prebind-timeout"}},
		"ShutdownTimeout":  {reason: "the value must be positive", args: []string{"--shutdown-timeout=0s"}, says: []string{"--shutdown-timeout"}},
		"UnknownMutator":   {reason: "the error lists the known values", args: []string{"--mutators=*,topologie"}, says: []string{"--mutators", "topology"}},
		"Required":         {reason: "a mutator that is on can be required", args: []string{"--required-mutators=topology"}},
		"RequiredOff":      {reason: "a mutator that is off cannot be required", args: []string{"--required-mutators=bind-info"}, says: []string{"--required-mutators", "bind-info"}},
		"NoNodeState":      {reason: "all checks can be switched off", args: []string{"--node-state-checks="}},
		"StartLimitWait":   {reason: "the wait must not exceed the limit of an attempt", args: []string{"--start-limit-wait=1h"}, says: []string{"--start-limit-wait", "1h"}},
		"NodeStateTooLong": {reason: "the wait must not exceed the limit of an attempt", args: []string{"--node-state-max-wait=1h"}, says: []string{"--node-state-max-wait", "1h"}},
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

func TestDebugAddress(t *testing.T) {
	cases := map[string]struct {
		reason, address string
		// says is part of the error. It is empty for no error.
		says string
	}{
		"Off":        {reason: "the server is off by default", address: ""},
		"Loopback":   {reason: "an IPv4 loopback address is valid", address: "127.0.0.1:6060"},
		"Localhost":  {reason: "the name localhost is valid", address: "localhost:6060"},
		"Everywhere": {reason: "the endpoints do not authenticate clients", address: ":6060", says: "must be a loopback address"},
		"Name":       {reason: "a name can resolve to any address", address: "debug.example.com:6060", says: "must be a loopback address"},
		"NoPort":     {reason: "the address must have a port", address: "127.0.0.1", says: "must be an address with a port"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			o := newServeOptions(newRegistry())
			o.flags()
			require.Empty(t, o.debugAddress)
			o.debugAddress = tc.address
			err := cli.Usage(o.validate()...)
			if tc.says == "" {
				assert.NoError(t, err, tc.reason)
				return
			}
			assert.ErrorContains(t, err, "--debug-bind-address: ", tc.reason)
			assert.ErrorContains(t, err, tc.says, tc.reason)
		})
	}
}

// TestListen checks that the error names the flag of an address that is in use.
func TestListen(t *testing.T) {
	taken, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { assert.NoError(t, taken.Close()) }()
	for flag, set := range map[string]func(o *serveOptions, address string){
		"webhook-bind-address":      func(o *serveOptions, address string) { o.webhookAddress = address },
		"health-probe-bind-address": func(o *serveOptions, address string) { o.healthAddress = address },
		"metrics-bind-address":      func(o *serveOptions, address string) { o.metricsAddress = address },
		"debug-bind-address":        func(o *serveOptions, address string) { o.debugAddress = address },
	} {
		o := &serveOptions{}
		o.webhookAddress, o.healthAddress, o.metricsAddress = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
		open, err := o.listen(t.Context())
		require.NoError(t, err)
		assert.Len(t, open, 3, "the debug server is off by default")
		for _, l := range open {
			require.NoError(t, l.Close())
		}
		set(o, taken.Addr().String())
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
