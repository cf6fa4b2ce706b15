// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// pipe is a listener in memory, whose connections keep to the time of a bubble.
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

func noCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) { return nil, nil }

// TestServerHolds: an answer may take longer than reading the request, and the
// caller has not gone meanwhile.
func TestServerHolds(t *testing.T) {
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
		server := NewServer(handler, TLS{GetCertificate: noCertificate})
		listener := &pipe{conns: make(chan net.Conn), closed: make(chan struct{})}
		served := make(chan error, 1)
		go func() { served <- server.Serve(listener) }()
		transport := &http.Transport{DialContext: listener.dial}
		client := &http.Client{Transport: transport}

		for range 2 { // The second call comes over the same connection.
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
	server := NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }), TLS{GetCertificate: noCertificate})
	assert.Equal(t, http.StatusTeapot, serve(t, server.Handler, nil).Code)
	other := serve(t, server.Handler, nil, func(r *http.Request) { r.URL.Path = "/elsewhere" })
	assert.Equal(t, http.StatusNotFound, other.Code, "one path, and nothing else")
	assert.GreaterOrEqual(t, server.TLSConfig.MinVersion, uint16(tls.VersionTLS12))
	assert.NotNil(t, server.TLSConfig.GetCertificate, "the certificate is asked for anew, so that it can be rotated")
}
