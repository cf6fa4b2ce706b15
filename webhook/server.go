// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"crypto/tls"
	"net/http"
	"time"
)

const (
	maxHeader = 64 << 10
	// readTimeout bounds the reading of a request. An answer may take longer than
	// that, within its own deadline, so that there is no write timeout.
	readTimeout = 10 * time.Second
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
		ReadHeaderTimeout: readTimeout,
		ReadTimeout:       readTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
	}
}
