// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"net"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/prebind/prebind/config/v1alpha1"
)

// completed is what serve makes of these flags.
func completed(t *testing.T, args ...string) (*v1alpha1.Loaded, error) {
	t.Helper()
	o := defaultServeOptions(newRegistry())
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
		// says are parts of the error; none for no error.
		says []string
	}{
		"Default":          {reason: "the defaults are valid"},
		"NoMetrics":        {reason: "0 switches metrics off", args: []string{"--metrics-bind-address=0"}},
		"IPv6":             {reason: "addresses of every family", args: []string{"--webhook-bind-address=[::1]:9443"}},
		"AllOff":           {reason: "nothing need be on", args: []string{"--mutators=", "--prebind-plugins=", "--topology-labels="}},
		"WebhookAddress":   {reason: "a port is needed", args: []string{"--webhook-bind-address=9443"}, says: []string{"--webhook-bind-address", `"9443"`}},
		"MetricsAddress":   {reason: "a port is needed", args: []string{"--metrics-bind-address=localhost"}, says: []string{"--metrics-bind-address"}},
		"HealthAddress":    {reason: "a port is needed", args: []string{"--health-probe-bind-address="}, says: []string{"--health-probe-bind-address"}},
		"CertDir":          {reason: "a certificate is needed", args: []string{"--cert-dir="}, says: []string{"--cert-dir"}},
		"SelfManaged":      {reason: "the defaults are valid", args: []string{"--self-managed-certs"}},
		"CertsTwice":       {reason: "a contradiction is an error", args: []string{"--self-managed-certs", "--cert-dir=/etc/prebind/tls"}, says: []string{"--self-managed-certs", "--cert-dir"}},
		"CertService":      {reason: "the name of a Service", args: []string{"--self-managed-certs", "--webhook-service=a.b"}, says: []string{"--webhook-service", "a.b"}},
		"CertConfig":       {reason: "the name of an object", args: []string{"--self-managed-certs", "--webhook-configuration=A"}, says: []string{"--webhook-configuration"}},
		"CertValidity":     {reason: "it must be changed in time", args: []string{"--self-managed-certs", "--self-managed-cert-validity=1m"}, says: []string{"--self-managed-cert-validity"}},
		"ClientNames":      {reason: "names of whom?", args: []string{"--client-allowed-names=a"}, says: []string{"--client-allowed-names", "--client-ca-file"}},
		"Mode":             {reason: "the known ones are listed", args: []string{"--mode=audit"}, says: []string{"--mode", `"audit"`, "Audit"}},
		"Hold":             {reason: "must be positive", args: []string{"--hold=0s"}, says: []string{"--hold", "0s"}},
		"MaxHolds":         {reason: "must be positive", args: []string{"--max-holds=-1"}, says: []string{"--max-holds", "-1"}},
		"Timeout":          {reason: "must be positive", args: []string{"--prebind-timeout=-1s"}, says: []string{"--prebind-timeout"}},
		"MaxTimeout":       {reason: "the default must be within the limit", args: []string{"--max-prebind-timeout=1m"}, says: []string{"--max-prebind-timeout"}},
		"ShutdownTimeout":  {reason: "must be positive", args: []string{"--shutdown-timeout=0s"}, says: []string{"--shutdown-timeout"}},
		"UnknownMutator":   {reason: "the known ones are listed", args: []string{"--mutators=*,topologie"}, says: []string{"--mutators", "topology"}},
		"UnknownPlugin":    {reason: "the known ones are listed", args: []string{"--prebind-plugins=volumes"}, says: []string{"--prebind-plugins", "volumebinding"}},
		"Contradiction":    {reason: "on and off at once", args: []string{"--mutators=topology,-topology"}, says: []string{"--mutators", "both on and off"}},
		"BadTopologyLabel": {reason: "a label key", args: []string{"--topology-labels=a b"}, says: []string{"--topology-labels"}},
		"TopologyPath":     {reason: "a label key", args: []string{"--topology-path=a b"}, says: []string{"--topology-path", "a b"}},
		"TopologyPodLabel": {reason: "a key that is there", args: []string{"--topology-pod-labels=rack"}, says: []string{"--topology-pod-labels", "rack"}},
		"NodeAnnotations":  {reason: "an annotation key", args: []string{"--node-info-annotations=a/b/c"}, says: []string{"--node-info-annotations"}},
		"Required":         {reason: "what is on can be required", args: []string{"--required-mutators=topology"}},
		"RequiredOff":      {reason: "what is off never runs", args: []string{"--required-mutators=bind-info"}, says: []string{"--required-mutators", "bind-info"}},
		"NodeStateChecks":  {reason: "the known ones are listed", args: []string{"--node-state-checks=raedy"}, says: []string{"--node-state-checks", "raedy", "ready"}},
		"NoNodeState":      {reason: "nothing need be checked", args: []string{"--node-state-checks="}},
		"NodeStateWait":    {reason: "must be positive", args: []string{"--node-state-max-wait=0s"}, says: []string{"--node-state-max-wait"}},
		"NodeStateTooLong": {reason: "more than any attempt has", args: []string{"--node-state-max-wait=1h"}, says: []string{"--node-state-max-wait", "1h"}},
		"NodeLockTimeout":  {reason: "must be positive", args: []string{"--device-node-lock-timeout=0s"}, says: []string{"--device-node-lock-timeout"}},
		"ClaimsTimeout":    {reason: "must be positive", args: []string{"--resource-claims-binding-timeout=0s"}, says: []string{"--resource-claims-binding-timeout"}},
		"ClaimsAllocate":   {reason: "the name of a class", args: []string{"--resource-claims-allocate=GPU !"}, says: []string{"--resource-claims-allocate", "GPU !"}},
		"NoFile":           {reason: "a file that is not there", args: []string{"--config=testdata/none.yaml"}, says: []string{"--config", "none.yaml", "no such file"}},
		"Several": {
			reason: "all that is wrong is told at once", args: []string{"--hold=0s", "--max-holds=0", "--mutators=x", "--webhook-bind-address=1"},
			says: []string{"--hold", "--max-holds", "--mutators", "--webhook-bind-address"},
		},
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

// TestFlagsAreDocumented: every flag has a usage, and the ones that design and
// manifests rely on are there.
func TestFlagsAreDocumented(t *testing.T) {
	sets := defaultServeOptions(newRegistry()).flags()
	known := map[string]bool{}
	for _, section := range sets.Order {
		sets.FlagSets[section].VisitAll(visit(t, known))
	}
	for _, name := range []string{
		"kubeconfig", "webhook-bind-address", "cert-dir", "metrics-bind-address", "health-probe-bind-address",
		"mutators", "prebind-plugins", "config", "mode", "hold", "max-holds", "prebind-timeout",
	} {
		assert.True(t, known[name], "--%s", name)
	}
}

func TestDebugAddress(t *testing.T) {
	cases := map[string]struct {
		reason, address string
		// says is part of the error; empty for none.
		says string
	}{
		"Off":        {reason: "it is off by default", address: ""},
		"Loopback":   {reason: "IPv4", address: "127.0.0.1:6060"},
		"Loopback6":  {reason: "IPv6", address: "[::1]:6060"},
		"Localhost":  {reason: "by name", address: "localhost:6060"},
		"Everywhere": {reason: "profiles are nobody's business", address: ":6060", says: "must be a loopback address"},
		"Zero":       {reason: "nor in this form", address: "0.0.0.0:6060", says: "must be a loopback address"},
		"Address":    {reason: "nor of the pod", address: "10.0.0.7:6060", says: "must be a loopback address"},
		"Name":       {reason: "a name may lead anywhere", address: "debug.example.com:6060", says: "must be a loopback address"},
		"NoPort":     {reason: "an address has a port", address: "127.0.0.1", says: "must be an address with a port"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			o := defaultServeOptions(newRegistry())
			require.Empty(t, o.debugAddress)
			o.debugAddress = tc.address
			err := oneLine(o.validate())
			if tc.says == "" {
				assert.NoError(t, err, tc.reason)
				return
			}
			assert.ErrorContains(t, err, "--debug-bind-address: ", tc.reason)
			assert.ErrorContains(t, err, tc.says, tc.reason)
		})
	}
}

// An address that is in use is named by its flag, and what was opened before it is
// closed again; one that is switched off is not opened.
func TestListen(t *testing.T) {
	taken, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { assert.NoError(t, taken.Close()) }()
	for flag, set := range map[string]func(o *serveOptions, address string){
		"webhook-bind-address":      func(o *serveOptions, address string) { o.webhookAddress = address },
		"health-probe-bind-address": func(o *serveOptions, address string) { o.healthAddress = address },
		"debug-bind-address":        func(o *serveOptions, address string) { o.debugAddress = address },
	} {
		o := defaultServeOptions(newRegistry())
		o.webhookAddress, o.healthAddress = "127.0.0.1:0", "127.0.0.1:0"
		open, err := o.listen(t.Context())
		require.NoError(t, err)
		assert.Len(t, open, 2, "the debug server is off by default")
		closeAll(open)
		free := open["webhook-bind-address"].Addr().String()
		o.webhookAddress = free
		set(o, taken.Addr().String())
		_, err = o.listen(t.Context())
		require.ErrorContains(t, err, "--"+flag+": ")
		require.ErrorContains(t, err, "address already in use")
		assert.NotContains(t, err.Error(), "\n")
		again, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", free)
		require.NoError(t, err, "nothing is left open")
		require.NoError(t, again.Close())
	}
}

func TestLimitMemory(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		env    map[string]string
		want   int64
		err    string
	}{
		"Container": {reason: "the shipped limit of 512Mi, less a tenth", env: map[string]string{memoryLimitVariable: "536870912"}, want: 483183821},
		"Explicit": {
			reason: "an operator who sets GOMEMLIMIT gets it",
			env:    map[string]string{memoryLimitVariable: "536870912", goMemoryLimitVariable: "300MiB"},
		},
		"None":     {reason: "a process outside a container has no limit"},
		"Quantity": {reason: "the downward API writes bytes", env: map[string]string{memoryLimitVariable: "512Mi"}, err: `PREBIND_MEMORY_LIMIT: must be a positive number of bytes, got "512Mi"`},
		"Zero":     {reason: "a limit of zero would stop the process from working", env: map[string]string{memoryLimitVariable: "0"}, err: `PREBIND_MEMORY_LIMIT: must be a positive number of bytes, got "0"`},
	} {
		t.Run(name, func(t *testing.T) {
			var got int64
			err := limitMemory(func(key string) string { return tc.env[key] }, func(limit int64) int64 {
				got = limit
				return 0
			})
			if tc.err != "" {
				assert.EqualError(t, err, tc.err, tc.reason)
			} else {
				assert.NoError(t, err, tc.reason)
			}
			assert.Equal(t, tc.want, got, tc.reason)
		})
	}
}
