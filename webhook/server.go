// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// maxHeader is over ten times what the API server sends. net/http adds 4 KiB.
	maxHeader = 16 << 10
	// readHeaderTimeout also bounds the TLS handshake. There is no timeout for the whole
	// request: a call that is held would lose its context. Limits bound its body.
	readHeaderTimeout = 10 * time.Second
	// idleTimeout is longer than the API server keeps an idle connection, so that
	// it is never the server that closes one just when a review comes in.
	idleTimeout = 3 * time.Minute
)

// TLS says what the server shows to its callers, and who may call.
type TLS struct {
	// GetCertificate is asked for each new connection, so that a rotation needs no
	// restart. Required.
	GetCertificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// ClientCAs are asked for at each new connection: the CAs of which a caller must
	// have a certificate. Nil lets everybody call.
	ClientCAs func() *x509.CertPool
	// ClientNames are the common names of which a caller's certificate must have
	// one. Empty is any name. It takes ClientCAs.
	ClientNames []string
}

// NewServer returns the HTTPS server of the handler, to be given a listener of the
// limits.
func NewServer(handler http.Handler, t TLS, l *Limits) *http.Server {
	mux := http.NewServeMux()
	mux.Handle(Path, onlyFrom(t.ClientNames, handler))
	return &http.Server{
		Handler:           l.Handler(mux),
		TLSConfig:         t.config(),
		ReadHeaderTimeout: readHeaderTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
	}
}

func (t TLS) config() *tls.Config {
	config := &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: t.GetCertificate, NextProtos: []string{"http/1.1"}}
	if t.ClientCAs == nil {
		return config
	}
	// A resumed session would not ask the CAs of today.
	config.SessionTicketsDisabled = true
	config.ClientAuth = tls.RequireAndVerifyClientCert
	config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		current := config.Clone()
		current.GetConfigForClient = nil
		current.ClientCAs = t.ClientCAs()
		return current, nil
	}
	return config
}

// onlyFrom lets only callers with one of these names in their certificate, which
// TLS has verified, come to the handler. Without names it lets all.
func onlyFrom(names []string, next http.Handler) http.Handler {
	if len(names) == 0 {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		caller := ""
		if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
			caller = r.TLS.VerifiedChains[0][0].Subject.CommonName
		}
		if caller == "" || !slices.Contains(names, caller) {
			err := fmt.Errorf("the client certificate of %q may not call this webhook: --client-allowed-names says who may", caller)
			// A caller that has gone away needs no answer.
			_ = writeJSON(w, http.StatusForbidden, failure(http.StatusForbidden, metav1.StatusReasonForbidden, err))
			return
		}
		next.ServeHTTP(w, r)
	})
}
