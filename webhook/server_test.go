// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"
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

func (p *pipe) dial(context.Context, string, string) (net.Conn, error) {
	client, server := net.Pipe()
	p.conns <- server
	return client, nil
}

// plainServer returns a Server for a listener without TLS. Serve its limits.
func plainServer(t testing.TB, handler http.Handler, listener net.Listener, refused func(string)) *Server {
	t.Helper()
	server := NewServer(ServerOptions{
		Listener: listener, Clock: clock.RealClock{}, Refused: refused, ErrorLog: log.New(io.Discard, "", 0), Certificates: func(*tls.Config) {},
	})
	server.Register(Path, handler)
	return server
}

func ignored(string) {}

// TestServer_HeldCall checks that timeouts for reading do not end a held call.
func TestServer_HeldCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const hold = 25 * time.Second
		handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			select {
			case <-time.After(hold):
				w.WriteHeader(http.StatusOK)
			case <-r.Context().Done():
				w.WriteHeader(http.StatusGone)
			}
		})
		listener := &pipe{conns: make(chan net.Conn), closed: make(chan struct{})}
		limited := plainServer(t, handler, listener, ignored)
		server, served := limited.serving.Server, make(chan error, 1)
		go func() { served <- server.Serve(limited.limits) }()
		transport := &http.Transport{DialContext: listener.dial}
		client := &http.Client{Transport: transport}

		for range 2 { // The second call uses the same connection.
			begin := time.Now()
			request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://prebind"+Path, strings.NewReader("{}"))
			require.NoError(t, err)
			response, err := client.Do(request)
			require.NoError(t, err)
			require.NoError(t, response.Body.Close())
			assert.Equal(t, http.StatusOK, response.StatusCode)
			assert.Equal(t, hold, time.Since(begin))
		}
		transport.CloseIdleConnections()
		require.NoError(t, server.Shutdown(t.Context()))
		require.ErrorIs(t, <-served, http.ErrServerClosed)
	})
}

func TestServer(t *testing.T) {
	server := plainServer(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }), &pipe{}, ignored)
	assert.Equal(t, http.StatusTeapot, serve(t, server.WebhookMux(), nil).Code)
	other := serve(t, server.WebhookMux(), nil, func(r *http.Request) { r.URL.Path = "/elsewhere" })
	assert.Equal(t, http.StatusNotFound, other.Code, "only one path is served")
}

func TestNewServer(t *testing.T) {
	var config *tls.Config
	server := NewServer(ServerOptions{Listener: &pipe{}, Clock: clock.RealClock{}, Refused: ignored, Certificates: func(c *tls.Config) { config = c }})
	assert.GreaterOrEqual(t, config.MinVersion, uint16(tls.VersionTLS12))
	assert.Equal(t, []string{"http/1.1"}, config.NextProtos, "with HTTP/1.1, the limit of connections also limits calls")
	require.NoError(t, server.StartedChecker()(nil))
	assert.False(t, server.NeedLeaderElection(), "every replica serves")
}

// TestServer_Limits checks the limits of size and time for a request.
func TestServer_Limits(t *testing.T) {
	const head = "POST " + Path + " HTTP/1.1\r\nHost: prebind\r\n"
	cases := map[string]struct {
		reason string
		// sent is the data that the client sends.
		sent string
		// answer is the prefix of the answer. It is empty for no answer.
		answer string
		// after is the time after which the connection ends.
		after time.Duration
	}{
		"LargeHeader": {reason: "a header is too large", sent: head + "A: " + strings.Repeat("a", maxHeader+8<<10) + "\r\n\r\n", answer: "HTTP/1.1 431"},
		"SlowHeader":  {reason: "the headers are incomplete", sent: head, after: readHeaderTimeout},
		"Idle":        {reason: "the client sends nothing", after: readHeaderTimeout},
		"SaidLarge":   {reason: "the announced length is not allocated", sent: head + "Content-Length: 1099511627776\r\n\r\n{", answer: "HTTP/1.1 408", after: bodyTakes},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if _, err := io.ReadAll(r.Body); err != nil {
						w.WriteHeader(http.StatusRequestTimeout)
					}
				})
				listener := &pipe{conns: make(chan net.Conn), closed: make(chan struct{})}
				limited := plainServer(t, handler, listener, ignored)
				server, served := limited.serving.Server, make(chan error, 1)
				go func() { served <- server.Serve(limited.limits) }()
				conn, err := listener.dial(t.Context(), "", "")
				require.NoError(t, err)
				begin := time.Now()
				// The server may not read everything.
				go func() { _, _ = conn.Write([]byte(tc.sent)) }()
				answer, err := io.ReadAll(conn)
				require.NoError(t, err)
				assert.True(t, strings.HasPrefix(string(answer), tc.answer), "%s: %.60q", tc.reason, answer)
				assert.Equal(t, tc.answer == "", len(answer) == 0, "%s: %.60q", tc.reason, answer)
				assert.InDelta(t, tc.after, time.Since(begin), float64(time.Second), tc.reason)
				require.NoError(t, conn.Close())
				require.NoError(t, server.Close())
				require.ErrorIs(t, <-served, http.ErrServerClosed)
			})
		})
	}
}
