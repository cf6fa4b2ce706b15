// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"net"
	"sync"
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

// connection is a connection that waits to be accepted, or that was accepted. Its phase and since are guarded by limits.mu.
type connection struct {
	net.Conn

	limits       *Limits
	peer, source string
	phase        phase
	// since is the beginning of the phase.
	since time.Time
}

// Write implements net.Conn.
func (c *connection) Write(p []byte) (int, error) {
	if err := c.SetWriteDeadline(c.limits.o.Clock.Now().Add(writeTakes)); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

// Close implements net.Conn.
func (c *connection) Close() error {
	c.limits.mu.Lock()
	c.limits.remove(c)
	c.limits.mu.Unlock()
	return c.Conn.Close()
}

// Listener returns a listener that limits the accepted connections. Use it below TLS, so that connections without a handshake
// count. Close it to end its goroutine.
func (l *Limits) Listener(inner net.Listener) net.Listener {
	return &listener{Listener: inner, limits: l, waiting: map[string][]*connection{}, incoming: make(chan result), closed: make(chan struct{})}
}

type listener struct {
	net.Listener
	limits *Limits
	// begin starts the goroutine that fills incoming.
	begin    sync.Once
	incoming chan result
	// closed is closed by Close.
	closed chan struct{}
	close  sync.Once
	// waiting are the connections that wait to be accepted, by source and in order. Only Accept uses them, one call at a time.
	waiting map[string][]*connection
}

// result is a result of the inner listener.
type result struct {
	conn net.Conn
	err  error
}

// Accept implements net.Listener. Only one call may be in progress.
func (l *listener) Accept() (net.Conn, error) {
	l.begin.Do(func() { go l.receive() })
	slow := false
	for {
		if c := l.next(slow); c != nil {
			return c, nil
		}
		var later <-chan time.Time
		if l.limits.waiting.Load() > 0 {
			later = l.limits.o.Clock.After(time.Second)
		}
		slow = false
		select {
		case r := <-l.incoming:
			if r.err != nil {
				return nil, r.err
			}
			l.enqueue(r.conn)
		case <-l.limits.wake:
		case <-later:
			slow = true
		case <-l.closed:
			for _, all := range l.waiting {
				for _, c := range all {
					_ = c.Close() // An error has no remedy.
				}
			}
			return nil, net.ErrClosed
		}
	}
}

// receive accepts connections, so that one that has to wait does not delay those of other sources.
func (l *listener) receive() {
	for {
		conn, err := l.Listener.Accept()
		select {
		case l.incoming <- result{conn, err}:
		case <-l.closed:
			if conn != nil {
				_ = conn.Close() // An error has no remedy.
			}
			return
		}
	}
}

// Close implements net.Listener.
func (l *listener) Close() error {
	l.close.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// enqueue adds a connection. If too many wait, the source with most of them loses its last one.
func (l *listener) enqueue(conn net.Conn) {
	peer := conn.RemoteAddr().String()
	c := &connection{Conn: conn, limits: l.limits, peer: peer, source: sourceOf(peer)}
	l.waiting[c.source] = append(l.waiting[c.source], c)
	if l.limits.waiting.Add(1) <= maxWaiting {
		return
	}
	most := c.source
	for source, all := range l.waiting {
		if len(all) > len(l.waiting[most]) {
			most = source
		}
	}
	all := l.waiting[most]
	l.limits.o.Refused(RefusedConnection)
	_ = all[len(all)-1].Close() // An error has no remedy.
	l.set(most, all[:len(all)-1])
}

// set replaces the connections of the source by one less.
func (l *listener) set(source string, all []*connection) {
	l.limits.waiting.Add(-1)
	if l.waiting[source] = all; len(all) == 0 {
		delete(l.waiting, source)
	}
}

// next returns the next connection to accept, or nil if all have to wait: the first one of the source with the fewest arriving
// connections. To make room, it closes an idle connection, and, if slow is set, one that is slow.
func (l *listener) next(slow bool) *connection {
	if l.limits.waiting.Load() == 0 {
		return nil
	}
	l.limits.mu.Lock()
	defer l.limits.mu.Unlock()
	arrivingOf, allArriving := l.limits.arriving()
	source := ""
	for s := range l.waiting {
		if source == "" || arrivingOf[s] < arrivingOf[source] {
			source = s
		}
	}
	if allArriving >= l.limits.maxArriving || arrivingOf[source] >= l.limits.maxOfSource {
		if !slow || !l.limits.makeRoom(arriving) {
			return nil
		}
	}
	if len(l.limits.connections) >= l.limits.maxConnections && !l.limits.makeRoom(idle) && (!slow || !l.limits.makeRoom(arriving)) {
		return nil
	}
	c := l.waiting[source][0]
	l.set(source, l.waiting[source][1:])
	l.limits.connections[c.peer] = c
	c.phase, c.since = arriving, l.limits.o.Clock.Now()
	return c
}

// arriving returns the number of arriving connections by source, and their sum. It must be called with mu held.
func (l *Limits) arriving() (bySource map[string]int, all int) {
	bySource = map[string]int{}
	for _, c := range l.connections {
		if c.phase == arriving {
			bySource[c.source]++
			all++
		}
	}
	return bySource, all
}

// makeRoom closes the connection that has been in the phase for longest. It returns false if there is none, or if an arriving one
// is not slow. It must be called with mu held.
func (l *Limits) makeRoom(p phase) bool {
	var oldest *connection
	for _, c := range l.connections {
		if c.phase == p && (oldest == nil || c.since.Before(oldest.since)) {
			oldest = c
		}
	}
	if oldest == nil || p == arriving && l.o.Clock.Since(oldest.since) < bodyTakes {
		return false
	}
	l.o.Refused(RefusedConnection)
	l.remove(oldest)
	_ = oldest.Conn.Close() // An error has no remedy.
	return true
}

// remove stops counting the connection. It must be called with mu held.
func (l *Limits) remove(c *connection) {
	if l.connections[c.peer] == c {
		delete(l.connections, c.peer)
		l.signal()
	}
}

// signal makes Accept look for room, if a connection waits for it.
func (l *Limits) signal() {
	if l.waiting.Load() == 0 {
		return
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
}
