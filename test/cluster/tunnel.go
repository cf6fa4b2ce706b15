// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
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
