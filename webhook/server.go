// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"crypto/tls"
	"fmt"
	"log"
	"net"
	"net/http"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
)

const (
	// maxHeader is more than ten times the size of the API server's headers. net/http adds 4 KiB.
	maxHeader = 16 << 10
	// readHeaderTimeout bounds the TLS handshake, the headers and the body of the first request together. It is shorter than the
	// 10 s after which the HTTP client of Go ends a handshake, because a new connection can wait for slow ones. A whole request
	// has no timeout, because it would end the context of a held call. limits bound later bodies.
	readHeaderTimeout = 8 * time.Second
	// idleTimeout is longer than the 90 s for which the API server keeps an idle connection.
	// With equal timeouts, the server could close a connection just when a review arrives.
	idleTimeout = 3 * time.Minute
)

// ServerOptions are the options of a Server. All fields are required.
type ServerOptions struct {
	// Listener accepts TCP connections. The server closes it.
	Listener net.Listener
	// Certificates sets the certificates. The server speaks TLS 1.2 or newer and HTTP/1.1.
	Certificates func(*tls.Config)
	Clock        clock.PassiveClock
	// Refused is called with one of RefusalReasons for each connection or body that a limit rejects. It must be safe for
	// concurrent use and must not block.
	Refused func(reason string)
	// ShutdownTimeout is the grace period for in-flight requests after the context of Start ends.
	ShutdownTimeout time.Duration
	// ErrorLog receives errors of connections, such as failed TLS handshakes.
	ErrorLog *log.Logger
}

// Server is the webhook.Server of controller-runtime with limits on connections and bodies. The library
// registers, routes and measures the handlers. Server implements its own Start, because the library opens the port
// itself and does not support these limits, a smaller header limit, or a longer idle timeout.
//
// A manager starts the server before its caches. The contexts of requests do not end with the context of Start. End that
// context after the replica has been drained.
type Server struct {
	webhook.Server
	limits  *limits
	serving *manager.Server
}

var _ webhook.Server = (*Server)(nil)

// NewServer returns a server without handlers. Add them with Register.
func NewServer(o ServerOptions) *Server {
	config := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
	o.Certificates(config)
	mux := http.NewServeMux()
	server := &http.Server{
		Handler: mux, ReadHeaderTimeout: readHeaderTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader, ErrorLog: o.ErrorLog,
	}
	limits := limit(server, o.Listener, o.Clock, o.Refused)
	return &Server{
		Server:  webhook.NewServer(webhook.Options{WebhookMux: mux}),
		limits:  limits,
		serving: &manager.Server{Name: "webhook", Listener: tls.NewListener(limits, config), Server: server, ShutdownTimeout: &o.ShutdownTimeout},
	}
}

// Limit gives the connections and bodies of another server the limits of a Server. The server must have a handler, and must serve the
// returned listener.
func Limit(server *http.Server, listener net.Listener) net.Listener {
	return limit(server, listener, clock.RealClock{}, func(string) {})
}

func limit(server *http.Server, listener net.Listener, c clock.PassiveClock, refused func(reason string)) *limits {
	l := newLimits(listener, c, refused)
	l.writes = server.WriteTimeout == 0
	server.Handler, server.ConnContext, server.ConnState = l.handler(server.Handler), withConnection, onState
	return l
}

// Start serves until the context ends and then waits for requests in flight. It implements webhook.Server of controller-runtime.
func (s *Server) Start(ctx context.Context) error { return s.serving.Start(ctx) }

// StartedChecker implements webhook.Server of controller-runtime. The port is already open when NewServer is called.
func (*Server) StartedChecker() healthz.Checker { return healthz.Ping }

// OnlyFrom returns a handler that rejects callers without one of these common names in their verified
// client certificate. Without names, it returns next.
func OnlyFrom(names []string, next http.Handler) http.Handler {
	if len(names) == 0 {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		caller := ""
		if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
			caller = r.TLS.VerifiedChains[0][0].Subject.CommonName
		}
		if caller == "" || !slices.Contains(names, caller) {
			err := fmt.Errorf("client certificate %q is not allowed to call this webhook: add its common name to --client-allowed-names", caller)
			writeJSON(w, failure(http.StatusForbidden, metav1.StatusReasonForbidden, err))
			return
		}
		next.ServeHTTP(w, r)
	})
}
