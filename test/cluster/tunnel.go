// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
)

// tunnel is a connection from the API server to a backend, by way of this
// process.
type tunnel struct {
	address    string
	client     net.Conn // nil until the connection is taken over
	backend    net.Conn // nil if the backend was cut off before
	blackholed atomic.Bool
	closing    sync.Once
}

// pipe carries bytes both ways until either side closes or, once the tunnel is
// blackholed, until both have given up or close is called.
func (t *tunnel) pipe() {
	if t.backend == nil {
		_, _ = io.Copy(io.Discard, t.client)
		return
	}
	if !t.blackholed.Load() {
		if _, err := io.WriteString(t.client, "HTTP/1.1 200 OK\r\n\r\n"); err != nil {
			return
		}
	}
	t.carry()
}

func (t *tunnel) carry() {
	var both sync.WaitGroup
	both.Go(func() { t.copy(t.backend, t.client) })
	both.Go(func() { t.copy(t.client, t.backend) })
	both.Wait()
}

// copy carries bytes one way, and loses them once the tunnel is blackholed.
func (t *tunnel) copy(to, from net.Conn) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if !t.blackholed.Load() {
			if _, failed := to.Write(buffer[:n]); failed != nil {
				err = failed
			}
		}
		if err == nil {
			continue
		}
		// Through a network that is cut, neither side sees the other go.
		if !t.blackholed.Load() {
			t.close()
		}
		return
	}
}

// close closes both sides; it may be called more than once.
func (t *tunnel) close() {
	t.closing.Do(func() {
		for _, conn := range []net.Conn{t.client, t.backend} {
			if conn != nil {
				_ = conn.Close()
			}
		}
	})
}

const egressConfigFile = "egress.yaml"

// egressSelection contains the path of a socket.
const egressSelection = `apiVersion: apiserver.k8s.io/v1beta1
kind: EgressSelectorConfiguration
egressSelections:
- name: cluster
  connection: {proxyProtocol: HTTPConnect, transport: {uds: {udsName: %q}}}
`

// listenForEgress opens the socket by which the API server's connections into the cluster network come to this process, and returns the
// API server's EgressSelectorConfiguration. It is a socket file and not a port, because the API server can do HTTP CONNECT over TCP with
// TLS only.
func (c *Cluster) listenForEgress(ctx context.Context) ([]byte, error) {
	path := c.file("egress.sock")
	var err error
	if c.egress, err = (&net.ListenConfig{}).Listen(ctx, "unix", path); err != nil {
		return nil, fmt.Errorf("listen on the egress socket (is TMPDIR too long a path?): %w", err)
	}
	return fmt.Appendf(nil, egressSelection, path), nil
}

// spreadConnections gives connections to the API servers in turn, like a load balancer without health checks. A connection
// that an API server refuses goes to the other one.
func (c *Cluster) spreadConnections(ctx context.Context) error {
	var err error
	if c.spread, err = (&net.ListenConfig{}).Listen(ctx, "tcp", address(c.ports[bothAPIServers])); err != nil {
		return fmt.Errorf("listen for connections to the API servers: %w", err)
	}
	ports := [2]int{c.ports[APIServer], c.ports[OtherAPIServer]}
	ctx = context.WithoutCancel(ctx) // of Start
	go func() {
		for {
			client, err := c.spread.Accept()
			if err != nil {
				return // The cluster has been stopped.
			}
			go connect(ctx, client, ports[0], ports[1])
			ports[0], ports[1] = ports[1], ports[0]
		}
	}()
	return nil
}

// connect connects the client to the first port that accepts a connection.
func connect(ctx context.Context, client net.Conn, ports ...int) {
	for _, port := range ports {
		backend, err := (&net.Dialer{}).DialContext(ctx, "tcp", address(port))
		if err == nil {
			t := &tunnel{client: client, backend: backend}
			t.carry()
			t.close()
			return
		}
	}
	_ = client.Close()
}
