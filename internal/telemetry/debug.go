// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package telemetry

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/pprof"
	"strings"

	"k8s.io/component-base/logs"

	"github.com/prebind/prebind/internal/configuration"
	"github.com/prebind/prebind/internal/work"
)

// maxLevel is the maximum length of a log level in a request, in bytes.
const maxLevel = 16

// Debug returns a handler of the endpoints below /debug, which show the attempts in progress and the configuration. It does not authenticate
// clients, so its server must listen on a loopback address.
func Debug(inFlight func() []work.InFlight, c *configuration.PrebindConfiguration) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/attempts", func(w http.ResponseWriter, _ *http.Request) {
		all := inFlight()
		if all == nil {
			all = []work.InFlight{}
		}
		w.Header().Set("Content-Type", "application/json")
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		_ = encoder.Encode(all) // An error means that the client has disconnected.
	})
	mux.HandleFunc("GET /debug/config", func(w http.ResponseWriter, _ *http.Request) {
		encoded, err := c.Encode()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/yaml")
		fmt.Fprintf(w, "# The configuration from flags and file. hash: %s\n# %s\n%s", c.Hash, c.Summary(), encoded)
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
