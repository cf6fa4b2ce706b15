// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/prebind/prebind/binder"
)

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
		"Everywhere": {reason: "profiles are nobody's business", address: ":6060", says: "not a loopback address"},
		"Zero":       {reason: "nor in this form", address: "0.0.0.0:6060", says: "not a loopback address"},
		"Address":    {reason: "nor of the pod", address: "10.0.0.7:6060", says: "not a loopback address"},
		"Name":       {reason: "a name may lead anywhere", address: "debug.example.com:6060", says: "not a loopback address"},
		"NoPort":     {reason: "an address has a port", address: "127.0.0.1", says: "no address with a port"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			o := defaultServeOptions()
			require.Empty(t, o.debug.address)
			o.debug.address = tc.address
			err := oneLine(o.problems())
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
		"debug-bind-address":        func(o *serveOptions, address string) { o.debug.address = address },
	} {
		o := defaultServeOptions()
		o.webhookAddress, o.healthAddress = "127.0.0.1:0", "127.0.0.1:0"
		open, err := o.listen(t.Context())
		require.NoError(t, err)
		assert.Nil(t, open.debug, "it is off by default")
		open.close()
		free := open.webhook.Addr().String()
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

func TestDebugHandler(t *testing.T) {
	given := pflag.NewFlagSet("test", pflag.ContinueOnError)
	o := defaultServeOptions()
	for _, fs := range o.flags().FlagSets {
		given.AddFlagSet(fs)
	}
	require.NoError(t, given.Parse([]string{"--hold=3s", "--prebind-plugins=*,-device", "--mutators=node-info"}))
	c, err := loadConfiguration(o.registry, "", given)
	require.NoError(t, err)
	attempts := []binder.InFlight{{Namespace: "shop", Pod: "web", Node: "node-a", Attempt: "a-1", Phase: "preparing", Plugin: "volumebinding"}}
	h := debugHandler(debugSources{config: func() *configuration { return c }, inFlight: func() []binder.InFlight { return attempts }})
	get := func(path string, into any) string {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
		require.Equal(t, http.StatusOK, w.Code, path)
		if into != nil {
			require.NoError(t, json.Unmarshal(w.Body.Bytes(), into), path)
		}
		return w.Body.String()
	}

	var shown []binder.InFlight
	get("/debug/attempts", &shown)
	assert.Equal(t, attempts[0].Attempt, shown[0].Attempt)
	attempts = nil
	assert.Equal(t, "[]\n", get("/debug/attempts", nil), "none is a list as well")

	var plugins []compiledInEntry
	get("/debug/plugins", &plugins)
	on := map[string]bool{}
	for _, p := range plugins {
		on[p.Type+" "+p.Name] = p.On
	}
	assert.Equal(t, map[string]bool{
		"mutator topology": false, "mutator node-info": true, "mutator bind-info": false, "mutator device-info": false,
		"PreBind node-state": true, "PreBind device": false, "PreBind resource-claims": true, "PreBind volumebinding": true,
	}, on)

	config := get("/debug/config", nil)
	assert.Contains(t, config, "hold: 3s")
	assert.Contains(t, config, "hash: "+c.hash)
	again, err := newConfiguration(o.registry, "shown", []byte(config), pflag.NewFlagSet("none", pflag.ContinueOnError))
	require.NoError(t, err, "it is a file that --config takes")
	assert.Equal(t, c.hash, again.hash, "and says the same")

	assert.Contains(t, get("/debug/pprof/", nil), "goroutine")
	assert.NotEmpty(t, get("/debug/pprof/heap", nil))
	assert.NotEmpty(t, get("/debug/pprof/cmdline", nil))
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/debug/config", nil))
	assert.Equal(t, http.StatusMethodNotAllowed, w.Code, "nothing can be changed")
}
