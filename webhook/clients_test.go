// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/prebind/prebind/internal/certificates"
	"github.com/prebind/prebind/test/gencert"
)

// guarded is a server that requires client certificates.
type guarded struct {
	address string
	roots   *x509.CertPool
	clients atomic.Pointer[x509.CertPool]
	calls   atomic.Int32
}

func newGuarded(t *testing.T, clients *gencert.Pair, names ...string) *guarded {
	t.Helper()
	ca := gencert.NewCA(t, "serving")
	serving := ca.Sign(t, "prebind", gencert.DNS("prebind.svc")).TLS(t)
	g := &guarded{roots: gencert.Pool(ca)}
	g.clients.Store(gencert.Pool(clients))
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	g.address = listener.Addr().String()
	server := NewServer(ServerOptions{Listener: listener, Clock: clock.RealClock{}, Refused: ignored, ShutdownTimeout: time.Minute, Certificates: func(c *tls.Config) {
		c.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &serving, nil }
		certificates.RequireClients(c, g.clients.Load)
	}})
	server.Register(Path, OnlyFrom(names, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { g.calls.Add(1) })))
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- server.Start(ctx) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-served)
	})
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
	cases := map[string]struct {
		reason string
		names  []string
		client *gencert.Pair
		// says is a pattern of the TLS error. code is the code of the answer.
		says string
		code int
	}{
		"Right":       {reason: "the name is allowed", names: []string{"a", "kube-apiserver"}, client: ca.Sign(t, "kube-apiserver"), code: http.StatusOK},
		"AnyName":     {reason: "without names, every name is allowed", client: ca.Sign(t, "any-client"), code: http.StatusOK},
		"WrongName":   {reason: "other certificates of the CA are not allowed", names: []string{"kube-apiserver"}, client: ca.Sign(t, "system:node:a"), code: http.StatusForbidden},
		"NoName":      {reason: "an empty name is not allowed", names: []string{"kube-apiserver"}, client: ca.Sign(t, ""), code: http.StatusForbidden},
		"EmptyName":   {reason: "an empty flag does not allow an empty name", names: []string{""}, client: ca.Sign(t, ""), code: http.StatusForbidden},
		"OtherCA":     {reason: "the CA is unknown", names: []string{"kube-apiserver"}, client: other.Sign(t, "kube-apiserver"), says: "unknown certificate authority"},
		"SelfSigned":  {reason: "the certificate is self-signed", names: []string{"kube-apiserver"}, client: gencert.NewCA(t, "kube-apiserver"), says: "bad certificate|unknown certificate authority"},
		"Expired":     {reason: "the certificate has expired", client: ca.Sign(t, "kube-apiserver", gencert.Valid(-2, -1)), says: "expired certificate"},
		"OnlyServing": {reason: "a serving certificate is not a client certificate", client: ca.Sign(t, "kube-apiserver", onlyServing), says: "bad certificate"},
		"None":        {reason: "a certificate is required", says: "certificate required"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			g := newGuarded(t, ca, tc.names...)
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

func onlyServing(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }
