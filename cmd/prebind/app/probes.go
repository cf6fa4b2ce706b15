// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"fmt"
	"net/http"
	"time"
)

// probeServer serves /healthz, which is well as long as it answers, and /readyz,
// which says why when the process is not ready. controller-runtime's own probes
// withhold that.
func probeServer(ready func() error) *http.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { probed(w, nil) })
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) { probed(w, ready()) })
	return &http.Server{Handler: mux, ReadHeaderTimeout: time.Second, ReadTimeout: time.Second, IdleTimeout: time.Minute}
}

func probed(w http.ResponseWriter, problem error) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	text := "ok"
	if problem != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		text = problem.Error()
	}
	_, _ = fmt.Fprintln(w, text) // A probe that has gone away needs no answer.
}
