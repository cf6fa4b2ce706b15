// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/prebind/prebind/internal/certificates"
	"github.com/prebind/prebind/test/gencert"
)

// pipe is an in-memory listener for a synctest bubble.
type pipe struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (p *pipe) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipe) Close() error {
	close(p.closed)
	return nil
}

func (p *pipe) Addr() net.Addr { return &net.TCPAddr{} }

func (p *pipe) dial() net.Conn {
	client, server := net.Pipe()
	p.conns <- server
	return client
}

func ignored(string) {}

// inMemory serves the handler on in-memory connections until the test ends.
func inMemory(t *testing.T, handler http.Handler, refused func(string)) (*pipe, *limits) {
	t.Helper()
	listener := &pipe{conns: make(chan net.Conn), closed: make(chan struct{})}
	server := NewServer(ServerOptions{
		Listener: listener, Clock: clock.RealClock{}, Refused: refused, ErrorLog: log.New(io.Discard, "", 0), Certificates: func(*tls.Config) {},
	})
	server.Register(Path, handler)
	served := make(chan error, 1)
	go func() { served <- server.serving.Server.Serve(server.limits) }()
	t.Cleanup(func() {
		require.NoError(t, server.serving.Server.Close())
		require.ErrorIs(t, <-served, http.ErrServerClosed)
	})
	return listener, server.limits
}

func TestNewServer(t *testing.T) {
	var config *tls.Config
	server := NewServer(ServerOptions{Listener: &pipe{}, Clock: clock.RealClock{}, Refused: ignored, Certificates: func(c *tls.Config) { config = c }})
	assert.GreaterOrEqual(t, config.MinVersion, uint16(tls.VersionTLS12))
	assert.Equal(t, []string{"http/1.1"}, config.NextProtos, "with HTTP/1.1, the limit of connections also limits calls")
	require.NoError(t, server.StartedChecker()(nil))
	assert.False(t, server.NeedLeaderElection(), "every replica serves")
}

// TestServer_LargeHeader checks the limit of the header of a request.
func TestServer_LargeHeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		listener, _ := inMemory(t, http.NotFoundHandler(), ignored)
		conn := listener.dial()
		begin := time.Now()
		// The server may not read everything.
		go func() {
			_, _ = conn.Write([]byte("POST " + Path + " HTTP/1.1\r\nHost: prebind\r\nA: " + strings.Repeat("a", maxHeader+8<<10) + "\r\n\r\n"))
		}()
		answer, err := io.ReadAll(conn)
		require.NoError(t, err)
		assert.True(t, strings.HasPrefix(string(answer), "HTTP/1.1 431"), "%.60q", answer)
		assert.Less(t, time.Since(begin), time.Second)
		require.NoError(t, conn.Close())
	})
}

// guarded is a server that requires client certificates.
type guarded struct {
	address string
	roots   *x509.CertPool
	clients atomic.Pointer[x509.CertPool]
	calls   atomic.Int32
}

// secureServer starts a server for TLS, and returns its address and the CA of its certificate.
func secureServer(t *testing.T, clients func(*tls.Config)) (server *Server, address string, roots *x509.CertPool) {
	t.Helper()
	ca := gencert.NewCA(t, "serving")
	serving := ca.Sign(t, "prebind", gencert.DNS("prebind.svc")).TLS(t)
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server = NewServer(ServerOptions{Listener: listener, Clock: clock.RealClock{}, Refused: ignored, ShutdownTimeout: time.Minute, Certificates: func(c *tls.Config) {
		c.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &serving, nil }
		clients(c)
	}})
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- server.Start(ctx) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-served)
	})
	return server, listener.Addr().String(), gencert.Pool(ca)
}

func newGuarded(t *testing.T, clients *gencert.Pair, names ...string) *guarded {
	t.Helper()
	g := &guarded{}
	g.clients.Store(gencert.Pool(clients))
	var server *Server
	server, g.address, g.roots = secureServer(t, func(c *tls.Config) { certificates.RequireClients(c, g.clients.Load) })
	server.Register(Path, OnlyFrom(names, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { g.calls.Add(1) })))
	return g
}

// call sends a request over a new connection with an optional client certificate.
func (g *guarded) call(t *testing.T, sessions tls.ClientSessionCache, client *gencert.Pair) (code int, status metav1.Status, err error) {
	t.Helper()
	config := &tls.Config{RootCAs: g.roots, ServerName: "prebind.svc", ClientSessionCache: sessions}
	if client != nil {
		pair := client.TLS(t)
		// Present the certificate even if the server does not list its CA.
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	}
	transport := &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+g.address+Path, http.NoBody)
	require.NoError(t, err)
	response, err := transport.RoundTrip(request)
	if err != nil {
		return 0, status, err
	}
	defer response.Body.Close()
	_ = json.NewDecoder(response.Body).Decode(&status) // The handler of these tests writes no body.
	return response.StatusCode, status, nil
}

func TestClients(t *testing.T) {
	ca, other := gencert.NewCA(t, "cluster"), gencert.NewCA(t, "other")
	old := gencert.NewCA(t, "old", gencert.Valid(-2*time.Hour, -time.Hour))
	cases := map[string]struct {
		reason string
		// trusts is ca if it is nil.
		trusts *gencert.Pair
		names  []string
		client *gencert.Pair
		// says is a pattern of the TLS error. code is the code of the answer.
		says string
		code int
	}{
		"Right":     {reason: "the name is allowed", names: []string{"a", "kube-apiserver"}, client: ca.Sign(t, "kube-apiserver"), code: http.StatusOK},
		"AnyName":   {reason: "without names, every name is allowed", client: ca.Sign(t, "any-client"), code: http.StatusOK},
		"WrongName": {reason: "other certificates of the CA are not allowed", names: []string{"kube-apiserver"}, client: ca.Sign(t, "system:node:a"), code: http.StatusForbidden},
		"EmptyName": {reason: "an empty flag does not allow an empty name", names: []string{""}, client: ca.Sign(t, ""), code: http.StatusForbidden},
		"OtherCA":   {reason: "the CA is unknown", names: []string{"kube-apiserver"}, client: other.Sign(t, "kube-apiserver"), says: "unknown certificate authority"},
		"OldCA":     {reason: "the CA has expired, although the certificate has not", trusts: old, client: old.Sign(t, "kube-apiserver"), says: "expired certificate"},
		"None":      {reason: "a certificate is required", says: "certificate required"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			g := newGuarded(t, cmp.Or(tc.trusts, ca), tc.names...)
			code, status, err := g.call(t, nil, tc.client)
			if tc.says != "" {
				require.Error(t, err, tc.reason)
				assert.Regexp(t, tc.says, err.Error(), tc.reason)
				assert.Zero(t, g.calls.Load(), tc.reason)
				return
			}
			require.NoError(t, err, tc.reason)
			assert.Equal(t, tc.code, code, tc.reason)
			if tc.code == http.StatusOK {
				assert.EqualValues(t, 1, g.calls.Load(), tc.reason)
				return
			}
			assert.Zero(t, g.calls.Load(), tc.reason)
			assert.Equal(t, metav1.StatusReasonForbidden, status.Reason)
			assert.Contains(t, status.Message, "--client-allowed-names")
			assert.Contains(t, status.Message, `"`+tc.client.Cert.Subject.CommonName+`"`)
		})
	}
}

// TestRequireClients_RemovedCA checks that clients of a removed CA cannot call, not even by session resumption.
func TestRequireClients_RemovedCA(t *testing.T) {
	before, after := gencert.NewCA(t, "before"), gencert.NewCA(t, "after")
	g := newGuarded(t, before)
	sessions := tls.NewLRUClientSessionCache(1)
	old := before.Sign(t, "kube-apiserver")
	for range 2 {
		_, _, err := g.call(t, sessions, old)
		require.NoError(t, err)
	}
	g.clients.Store(gencert.Pool(after))
	_, _, err := g.call(t, sessions, old)
	require.Error(t, err)
	_, _, err = g.call(t, sessions, after.Sign(t, "kube-apiserver"))
	require.NoError(t, err)
	assert.EqualValues(t, 3, g.calls.Load())
}

// TestProbes checks also that a failing requirement fails the probe, and that the replica still decides on Bindings.
func TestProbes(t *testing.T) {
	r := &Readiness{}
	nodes, pods, checks, problem := false, false, 0, error(nil)
	r.WaitFor("Node", func() bool { checks++; return nodes })
	r.WaitFor("Pod", func() bool { checks++; return pods })
	r.Require(func() error { return problem })
	handler := r.Probes()
	get := func(path string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
		return w
	}
	assert.Equal(t, http.StatusOK, get("/healthz").Code, "the process is alive")
	w := get("/readyz")
	assert.Equal(t, http.StatusServiceUnavailable, w.Code)
	assert.Contains(t, w.Body.String(), "Node", "the probe names a missing kind")
	nodes = true
	missing := get("/readyz").Body.String()
	assert.Contains(t, missing, "Pod")
	assert.NotContains(t, missing, "Node")
	pods = true
	assert.Equal(t, http.StatusOK, get("/readyz").Code)
	before := checks
	problem = errors.New("no lease")
	assert.Contains(t, get("/readyz").Body.String(), "no lease")
	require.NoError(t, r.Check())
	problem = nil
	assert.Equal(t, http.StatusOK, get("/readyz").Code)
	assert.Equal(t, before, checks, "a synced cache stays synced")
	r.Drain()
	require.ErrorContains(t, r.Check(), "shutting down")
	assert.Equal(t, http.StatusServiceUnavailable, get("/readyz").Code)
	assert.Equal(t, http.StatusOK, get("/healthz").Code)
	assert.Equal(t, http.StatusNotFound, get("/metrics").Code)
}
