// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"slices"
	"time"

	"github.com/spf13/pflag"

	"github.com/prebind/prebind/binder"
)

// debugOptions are the flags of /debug.
type debugOptions struct {
	// address is that of the server; empty for none.
	address string
}

func (o *debugOptions) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.address, "debug-bind-address", o.address,
		"Loopback address and port, such as 127.0.0.1:6060, of /debug/attempts, /debug/plugins, /debug/config and /debug/pprof (HTTP), to be reached by 'kubectl port-forward'. Without it there are none.")
}

// problems are all that is wrong with the flags. What /debug tells is nobody's who is
// not on this machine, or may forward a port of the pod.
func (o *debugOptions) problems() []error {
	if o.address == "" {
		return nil
	}
	host, _, err := net.SplitHostPort(o.address)
	if err != nil {
		return []error{fmt.Errorf("--debug-bind-address: %q is no address with a port, such as 127.0.0.1:6060", o.address)}
	}
	if ip, err := netip.ParseAddr(host); host != "localhost" && (err != nil || !ip.IsLoopback()) {
		return []error{fmt.Errorf("--debug-bind-address: %q is not a loopback address: give one such as 127.0.0.1:6060, and reach it by 'kubectl port-forward'", o.address)}
	}
	return nil
}

// debugSources are what /debug shows.
type debugSources struct {
	inFlight func() []binder.InFlight
	// config returns the configuration in force.
	config func() *configuration
}

// debugServer serves /debug.
func debugServer(from debugSources) *http.Server {
	// A profile takes half a minute or more: there is no limit to writing it.
	return &http.Server{Handler: debugHandler(from), ReadHeaderTimeout: time.Second, ReadTimeout: time.Second, IdleTimeout: time.Minute}
}

func debugHandler(from debugSources) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/attempts", func(w http.ResponseWriter, _ *http.Request) {
		all := from.inFlight()
		if all == nil {
			all = []binder.InFlight{}
		}
		showJSON(w, all)
	})
	mux.HandleFunc("GET /debug/plugins", func(w http.ResponseWriter, _ *http.Request) {
		all, err := compiledIn(from.config().settings)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		showJSON(w, all)
	})
	mux.HandleFunc("GET /debug/config", func(w http.ResponseWriter, _ *http.Request) {
		c := from.config()
		encoded, err := c.Encode()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/yaml")
		fmt.Fprintf(w, "# The configuration in force, by flags and file together. hash: %s\n%s", c.hash, encoded)
	})
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return mux
}

// compiledInEntry is a mutator or plugin, as /debug/plugins shows it.
type compiledInEntry struct {
	Name string `json:"name"`
	// Type is "mutator" or "PreBind", as in 'prebind plugins'.
	Type string `json:"type"`
	On   bool   `json:"on"`
}

// compiledIn are all mutators and plugins, in the order in which they run.
func compiledIn(s *settings) ([]compiledInEntry, error) {
	on, err := s.on()
	if err != nil {
		return nil, err
	}
	var all []compiledInEntry
	for _, m := range s.registry.mutators {
		all = append(all, compiledInEntry{Name: m.Name, Type: "mutator", On: slices.Contains(on.mutators, m.Name)})
	}
	for _, p := range s.registry.plugins {
		all = append(all, compiledInEntry{Name: p.Name, Type: "PreBind", On: slices.Contains(on.plugins, p.Name)})
	}
	return all, nil
}

func showJSON(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	_ = encoder.Encode(value) // Whoever asked has gone away.
}
