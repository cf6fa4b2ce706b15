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
	source netip.Prefix
	// arrives is the time at which the first request must have arrived. It is zero afterwards.
	arrives time.Time

	// The following fields are guarded by limits.mu. since is the beginning of the phase.
	phase phase
	since time.Time
	// bytes is the number of counted bytes of the body.
	bytes int64
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
	if c.limits.writes {
		if err := c.SetWriteDeadline(c.limits.clock.Now().Add(writeTakes)); err != nil {
			return 0, err
		}
	}
	return c.Conn.Write(p)
}

// Close implements net.Conn.
func (c *connection) Close() error {
	l := c.limits
	l.mu.Lock()
	delete(l.open, c)
	l.admit()
	l.mu.Unlock()
	return c.Conn.Close()
}

// enter records the beginning of a phase.
func (c *connection) enter(p phase) {
	c.limits.mu.Lock()
	defer c.limits.mu.Unlock()
	c.phase, c.since = p, c.limits.clock.Now()
	c.limits.admit()
}

type connectionKey struct{}

// withConnection is the ConnContext of the server. It passes the connection to the handler.
func withConnection(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connectionKey{}, connectionOf(c))
}

// onState is the ConnState of the server.
func onState(c net.Conn, state http.ConnState) {
	switch state { //nolint:exhaustive // The others are not phases.
	case http.StateActive:
		connectionOf(c).enter(arriving)
	case http.StateIdle:
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

// Accept implements net.Listener.
func (l *limits) Accept() (net.Conn, error) {
	select {
	case c := <-l.accepted:
		return c, nil
	case err := <-l.failed:
		return nil, err
	}
}

// receive accepts connections, so that one that has to wait does not delay those of other sources.
func (l *limits) receive() {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			// Without file descriptors, only progress of the waiting connections releases some.
			l.failed <- err
			if errors.Is(err, net.ErrClosed) {
				return
			}
			continue
		}
		source := sourceOf(conn.RemoteAddr().String())
		l.mu.Lock()
		l.waiting[source] = append(l.waiting[source], &connection{Conn: conn, limits: l, source: source})
		l.queued++
		if l.queued > maxWaiting {
			l.refused(RefusedConnection)
			l.drop()
		}
		l.admit()
		l.mu.Unlock()
	}
}

// drop closes the first connection of the source with most waiting ones. It must be called with mu held.
func (l *limits) drop() {
	most := slices.MaxFunc(slices.Collect(maps.Keys(l.waiting)), func(a, b netip.Prefix) int {
		return cmp.Compare(len(l.waiting[a]), len(l.waiting[b]))
	})
	_ = l.take(most).Conn.Close() // An error has no remedy.
}

// take removes the first connection of the source from those that wait. It must be called with mu held.
func (l *limits) take(source netip.Prefix) *connection {
	c := l.waiting[source][0]
	l.queued--
	if l.waiting[source] = l.waiting[source][1:]; len(l.waiting[source]) == 0 {
		delete(l.waiting, source)
	}
	return c
}

// admit accepts waiting connections while there is room: always the first one of the source with the fewest arriving
// connections. To make room, it closes the oldest idle connection. It must be called with mu held.
func (l *limits) admit() {
	for l.queued > 0 {
		ofSource, oldest := map[netip.Prefix]int{}, (*connection)(nil)
		for c := range l.open {
			switch {
			case c.phase == arriving:
				ofSource[c.source]++
			case c.phase == idle && (oldest == nil || c.since.Before(oldest.since)):
				oldest = c
			}
		}
		source := slices.MinFunc(slices.Collect(maps.Keys(l.waiting)), func(a, b netip.Prefix) int { return cmp.Compare(ofSource[a], ofSource[b]) })
		if ofSource[source] >= l.maxArriving {
			return
		}
		if len(l.open) >= l.maxConnections {
			if oldest == nil {
				return
			}
			l.refused(RefusedConnection)
			delete(l.open, oldest)
			_ = oldest.Conn.Close() // An error has no remedy.
		}
		c := l.take(source)
		c.since = l.clock.Now()
		c.arrives = c.since.Add(readHeaderTimeout)
		l.open[c] = struct{}{}
		l.accepted <- c
	}
}

// sourceOf returns the part of an address that a peer cannot choose freely: the IPv4 address, or the first 64 bits of the
// IPv6 address. Addresses that it cannot parse are one source.
func sourceOf(remote string) netip.Prefix {
	peer, _ := netip.ParseAddrPort(remote)
	address := peer.Addr().Unmap()
	source, _ := address.Prefix(min(address.BitLen(), 64))
	return source
}
