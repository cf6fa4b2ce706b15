// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"crypto/tls"
	"net/http"
	"time"
)

const (
	maxHeader         = 64 << 10
	readHeaderTimeout = 10 * time.Second
	// readTimeout is longer than the API server waits for any answer: when it is
	// over, a call that is held would lose its context.
	readTimeout = 40 * time.Second
	// idleTimeout is longer than the API server keeps an idle connection, so that
	// it is never the server that closes one just when a review comes in.
	idleTimeout = 3 * time.Minute
)

// NewServer returns the HTTPS server of the handler, to be given a listener. It
// asks getCertificate for the certificate of each new connection, so that a
// rotation needs no restart.
func NewServer(handler http.Handler, getCertificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)) *http.Server {
	mux := http.NewServeMux()
	mux.Handle(Path, handler)
	return &http.Server{
		Handler:           mux,
		TLSConfig:         &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: getCertificate, NextProtos: []string{"http/1.1"}},
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       readTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
	}
}
