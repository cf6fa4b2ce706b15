// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// APIProxy stands between one client and the API server, and gets in its way where
// a test says so. Its methods are safe for concurrent use.
type APIProxy struct {
	// Kubeconfig leads through the proxy, with the credentials of the original.
	Kubeconfig string

	server *httptest.Server
	cut    atomic.Bool
	// hold keeps the requests that write without an answer.
	hold atomic.Bool
	// slow is how long each request waits, in nanoseconds.
	slow atomic.Int64
}

// NewAPIProxy starts a proxy for the client of this kubeconfig; dir gets its own.
// Close it in the end.
func (c *Cluster) NewAPIProxy(kubeconfig, dir string) (*APIProxy, error) {
	target, err := url.Parse(c.URL(APIServer))
	if err != nil {
		return nil, fmt.Errorf("the API server's address: %w", err)
	}
	// Only the way and the CA: the credentials are those of each request.
	transport, err := rest.TransportFor(rest.AnonymousClientConfig(c.Config()))
	if err != nil {
		return nil, fmt.Errorf("reaching the API server: %w", err)
	}
	p := &APIProxy{Kubeconfig: filepath.Join(dir, "proxied.kubeconfig")}
	way := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:     transport,
		FlushInterval: -1,
		ErrorLog:      log.New(io.Discard, "", 0),
		ErrorHandler:  func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	p.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p.cut.Load() {
			panic(http.ErrAbortHandler)
		}
		if p.hold.Load() && r.Method != http.MethodGet {
			// The server notices that the client has gone only after it has read the body.
			_, _ = io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
			return
		}
		if Pause(r.Context(), time.Duration(p.slow.Load())) != nil {
			return
		}
		way.ServeHTTP(w, r)
	}))
	p.server.Config.ErrorLog = log.New(io.Discard, "", 0)
	p.server.StartTLS()
	config, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil {
		p.Close()
		return nil, fmt.Errorf("the client's kubeconfig: %w", err)
	}
	for _, entry := range config.Clusters {
		entry.Server, entry.CertificateAuthority = p.server.URL, ""
		entry.CertificateAuthorityData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.server.Certificate().Raw})
	}
	return p, clientcmd.WriteToFile(*config, p.Kubeconfig)
}

// HoldWrites keeps the requests that write without an answer, until their clients give up. With false, it lets new ones through.
func (p *APIProxy) HoldWrites(hold bool) { p.hold.Store(hold) }

// Slow has each request from now on wait for so long before it is passed on; 0 for
// not at all.
func (p *APIProxy) Slow(delay time.Duration) { p.slow.Store(int64(delay)) }

// Disconnect closes all connections, so that every watch starts again. New connections are accepted.
func (p *APIProxy) Disconnect() { p.server.CloseClientConnections() }

// Cut ends all connections, and every request from now on, until it is called with
// false.
func (p *APIProxy) Cut(cut bool) {
	p.cut.Store(cut)
	if cut {
		p.server.CloseClientConnections()
	}
}

// Close ends the proxy.
func (p *APIProxy) Close() {
	p.server.CloseClientConnections()
	p.server.Close()
}
