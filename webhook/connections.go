// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"time"
)

// phase is the state of an accepted connection.
type phase int

const (
	// arriving: the TLS handshake or a request is in progress.
	arriving phase = iota
	// working: Prebind processes a request.
	working
	// idle: a request was answered, and the next one has not begun.
	idle
)

// connection is a connection that waits to be accepted, or that was accepted.
type connection struct {
	net.Conn

	limits *limits
	source string
	// arrives is the time at which the first request must have arrived. It is zero afterwards.
	arrives time.Time

	// The following fields are guarded by limits.mu. since is the beginning of the phase.
	phase phase
	since time.Time
	// bytes is the number of counted bytes of the body. evicted is set when the body is refused.
	bytes   int64
	evicted bool
}

// SetReadDeadline implements net.Conn. The handshake, the headers and the body of the first request share a deadline.
func (c *connection) SetReadDeadline(t time.Time) error {
	if !c.arrives.IsZero() && (t.IsZero() || t.After(c.arrives)) {
		t = c.arrives
	}
	return c.Conn.SetReadDeadline(t)
}

// Write implements net.Conn.
func (c *connection) Write(p []byte) (int, error) {
	if err := c.SetWriteDeadline(c.limits.clock.Now().Add(writeTakes)); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

// Close implements net.Conn.
func (c *connection) Close() error {
	l := c.limits
	l.mu.Lock()
	l.bytes -= c.bytes
	c.bytes = 0
	delete(l.open, c)
	l.changed.Broadcast()
	l.mu.Unlock()
	return c.Conn.Close()
}

// enter records the beginning of a phase.
func (c *connection) enter(p phase) {
	c.limits.mu.Lock()
	defer c.limits.mu.Unlock()
	c.phase, c.since = p, c.limits.clock.Now()
	c.limits.changed.Broadcast()
}

type connectionKey struct{}

// withConnection is the ConnContext of the server. It passes the connection to the handler.
func withConnection(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connectionKey{}, connectionOf(c))
}

// onState is the ConnState of the server.
func onState(c net.Conn, state http.ConnState) {
	if state == http.StateIdle {
		connectionOf(c).enter(idle)
	}
}

func connectionOf(c net.Conn) *connection {
	if secure, ok := c.(*tls.Conn); ok {
		c = secure.NetConn()
	}
	accepted, _ := c.(*connection) // The server has no other listener.
	return accepted
}

// Accept implements net.Listener. Only one call may be in progress.
func (l *limits) Accept() (net.Conn, error) {
	l.begin.Do(func() { go l.receive() })
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		closed := errors.Is(l.failure, net.ErrClosed)
		for closed && l.queued > 0 {
			l.drop()
		}
		// Without file descriptors, only progress of the waiting connections releases some.
		if c := l.next(); c != nil {
			return c, nil
		}
		if err := l.failure; err != nil {
			l.failure = nil
			l.changed.Broadcast()
			return nil, err
		}
		l.changed.Wait()
	}
}

// receive accepts connections, so that one that has to wait does not delay those of other sources.
func (l *limits) receive() {
	for {
		conn, err := l.Listener.Accept()
		l.mu.Lock()
		if err == nil {
			source := sourceOf(conn.RemoteAddr().String())
			l.waiting[source] = append(l.waiting[source], &connection{Conn: conn, limits: l, source: source})
			l.queued++
		}
		if l.queued > maxWaiting {
			l.refused(RefusedConnection)
			l.drop()
		}
		l.failure = err
		l.changed.Broadcast()
		for l.failure != nil {
			l.changed.Wait() // Until Accept returns it.
		}
		l.mu.Unlock()
		if errors.Is(err, net.ErrClosed) {
			return
		}
	}
}

// drop closes the last connection of the source with most waiting ones. It must be called with mu held.
func (l *limits) drop() {
	most := slices.MaxFunc(slices.Collect(maps.Keys(l.waiting)), func(a, b string) int {
		return cmp.Compare(len(l.waiting[a]), len(l.waiting[b]))
	})
	_ = l.take(most, len(l.waiting[most])-1).Conn.Close() // An error has no remedy.
}

// take removes a connection of the source from those that wait. It must be called with mu held.
func (l *limits) take(source string, i int) *connection {
	c := l.waiting[source][i]
	l.queued--
	if l.waiting[source] = slices.Delete(l.waiting[source], i, i+1); len(l.waiting[source]) == 0 {
		delete(l.waiting, source)
	}
	return c
}

// next returns the next connection to accept, or nil if all have to wait: the first one of the source with the fewest arriving
// connections. To make room, it closes the oldest idle connection. It must be called with mu held.
func (l *limits) next() *connection {
	if l.queued == 0 {
		return nil
	}
	ofSource, all, oldest := map[string]int{}, 0, (*connection)(nil)
	for c := range l.open {
		switch {
		case c.phase == arriving:
			ofSource[c.source]++
			all++
		case c.phase == idle && (oldest == nil || c.since.Before(oldest.since)):
			oldest = c
		}
	}
	source := slices.MinFunc(slices.Collect(maps.Keys(l.waiting)), func(a, b string) int { return cmp.Compare(ofSource[a], ofSource[b]) })
	if all >= l.maxArriving || ofSource[source] >= l.maxOfSource {
		return nil
	}
	if len(l.open) >= l.maxConnections {
		if oldest == nil {
			return nil
		}
		l.refused(RefusedConnection)
		delete(l.open, oldest)
		_ = oldest.Conn.Close() // An error has no remedy.
	}
	c := l.take(source, 0)
	c.since = l.clock.Now()
	c.arrives = c.since.Add(readHeaderTimeout)
	l.open[c] = struct{}{}
	return c
}

// sourceOf returns the part of an address that a peer cannot choose freely: the IPv4 address, or the first 64 bits of the
// IPv6 address. If it cannot parse an address, it returns the address unchanged.
func sourceOf(remote string) string {
	peer, err := netip.ParseAddrPort(remote)
	if err != nil {
		return remote
	}
	address := peer.Addr().Unmap()
	if address.Is4() {
		return address.String()
	}
	network, err := address.WithZone("").Prefix(64)
	if err != nil {
		return remote
	}
	return network.String()
}
