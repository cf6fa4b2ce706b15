// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package telemetry

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/pprof"
	"slices"
	"strings"
	"time"

	"k8s.io/component-base/logs"

	"github.com/prebind/prebind/binder/work"
	"github.com/prebind/prebind/config/v1alpha1"
)

// maxLevel is the maximum length of a log level in a request, in bytes.
const maxLevel = 16

// DebugOptions are the sources of the debug endpoints. All fields are required.
type DebugOptions struct {
	// InFlight returns the attempts in progress.
	InFlight func() []work.InFlight
	Config   *v1alpha1.Loaded
}

// NewDebugServer returns a server for the endpoints below /debug. It does not authenticate
// clients, so it must listen on a loopback address.
func NewDebugServer(o DebugOptions) *http.Server {
	// There is no timeout for writing, because a profile takes at least half a minute.
	return &http.Server{Handler: debugHandler(o), ReadHeaderTimeout: time.Second, ReadTimeout: time.Second, IdleTimeout: time.Minute}
}

func debugHandler(o DebugOptions) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/attempts", func(w http.ResponseWriter, _ *http.Request) {
		all := o.InFlight()
		if all == nil {
			all = []work.InFlight{}
		}
		writeJSON(w, all, nil)
	})
	mux.HandleFunc("GET /debug/plugins", func(w http.ResponseWriter, _ *http.Request) {
		all, err := components(o.Config.PrebindConfiguration)
		writeJSON(w, all, err)
	})
	mux.HandleFunc("GET /debug/config", func(w http.ResponseWriter, _ *http.Request) {
		encoded, err := o.Config.Encode()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/yaml")
		fmt.Fprintf(w, "# The configuration from flags and file. hash: %s\n%s", o.Config.Hash, encoded)
	})
	mux.HandleFunc("PUT /debug/flags/v", setLevel)
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return mux
}

// setLevel sets the log level, like the endpoint of the same name in Kubernetes components.
func setLevel(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxLevel))
	var done string
	if err == nil {
		done, err = logs.GlogSetter(strings.TrimSpace(string(body)))
	}
	if err != nil {
		http.Error(w, "the body must be a log level such as 4: "+err.Error(), http.StatusBadRequest)
		return
	}
	fmt.Fprintln(w, done)
}

// component is a mutator or PreBind plugin in /debug/plugins. Its JSON is stable.
type component struct {
	Name string `json:"name"`
	// Type is "mutator" or "PreBind", as in 'prebind plugins'.
	Type string `json:"type"`
	On   bool   `json:"on"`
}

// components returns everything that is compiled in, in the order in which it runs.
func components(c *v1alpha1.PrebindConfiguration) ([]component, error) {
	var all []component
	add := func(kind string, registered []v1alpha1.Component, on []string) {
		for _, r := range registered {
			all = append(all, component{Name: r.Name, Type: kind, On: slices.Contains(on, r.Name)})
		}
	}
	mutators, err := c.SelectedMutators()
	if err != nil {
		return nil, err
	}
	plugins, err := c.SelectedPlugins()
	add("mutator", c.Registered().Mutators, mutators)
	add("PreBind", c.Registered().Plugins, plugins)
	return all, err
}

func writeJSON(w http.ResponseWriter, value any, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	_ = encoder.Encode(value) // An error means that the client has disconnected.
}
