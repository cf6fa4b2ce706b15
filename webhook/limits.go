// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

const (
	// maxBody is the maximum size of a review. All annotations of an object have at most 256 KiB. JSON escapes a byte with
	// up to six bytes, which makes 1.5 MiB. The rest is for labels, and for the user's groups and extra values, which come
	// from headers of at most 1 MiB and usually have less than 1 KiB.
	maxBody = 2 << 20
	// maxBodies is the maximum size of all bodies that are being read or decoded. Decoding can briefly need three times
	// as much memory. Most reviews have 2 KiB.
	maxBodies = 16 * maxBody
	// maxConnections is the maximum number of accepted connections. With HTTP/1.1 this also limits concurrent calls. A
	// connection needs about 60 KiB.
	maxConnections = 1024
	// maxArriving is the maximum number of accepted connections whose first review has not arrived. The work of a TLS handshake
	// makes more of them slower together. A source has at most maxOfSource of them, so that another one does not wait.
	maxArriving = 256
	maxOfSource = 192
	// maxWaiting is the maximum number of connections that wait to be accepted. One needs less than 1 KiB.
	maxWaiting = 16384
	// bodyTakes is the timeout for reading a body. It does not include the hold.
	bodyTakes = 5 * time.Second
	// writeTakes is the timeout of each write of an answer.
	writeTakes = 5 * time.Second
	// idleTakes is the time after which an idle connection can make room for another one. A client that has calls to send
	// reuses its connections earlier.
	idleTakes = 5 * time.Second
)

// Reasons for which Limits refuse a connection or body. They are values of the metric label "reason".
const (
	// RefusedConnection means that an idle or slow connection was closed because others waited.
	RefusedConnection = "connections"
	// RefusedBody means that a body was not read because all bodies together were too large.
	RefusedBody = "bodies"
	// RefusedSlow means that reading a body timed out.
	RefusedSlow = "slow"
)

// RefusalReasons returns all reasons. The caller owns the slice.
func RefusalReasons() []string { return []string{RefusedConnection, RefusedBody, RefusedSlow} }

// errOverloaded is the error of reading the body of a request that the API server must repeat.
var errOverloaded = errors.New("this replica cannot read the request")

// LimitOptions are the options of Limits. All fields are required.
type LimitOptions struct {
	Clock clock.Clock
	// Refused is called with one of RefusalReasons for each refusal. It must be safe for concurrent use and must not
	// block.
	Refused func(reason string)
}

// Limits limit the memory that unauthenticated peers can make a server use. They limit the size of a body, the size of all
// bodies that are read at the same time, the time for reading a body, and the number of connections. When the bodies are
// too large, the source address that uses most of the bytes loses its oldest body. When there are too many connections, new
// ones wait, and those that are idle or slow are closed: the API server is a source too, and no limit closes a connection that
// carries, or is about to carry, an ordinary review.
//
// Limits are for one server. They are safe for concurrent use.
type Limits struct {
	o                                        LimitOptions
	maxBodies                                int64
	maxConnections, maxArriving, maxOfSource int

	mu sync.Mutex
	// connections contains the accepted connections. sources contains the sources of connections.
	connections map[*connection]struct{}
	sources     map[string]*source
	// arriving and waiting are the numbers of all sources, and bytes is the size of all bodies.
	arriving, waiting int
	bytes             int64
	// admitted receives the connections to accept. It has space for all.
	admitted chan *connection
}

// source is an IPv4 address, or the first 64 bits of an IPv6 address: the part that a peer cannot choose freely.
type source struct {
	name string
	// waiting contains the connections that wait to be accepted, in order.
	waiting []*connection
	// accepted is the number of accepted connections, and arriving the number of those in that phase.
	accepted, arriving int
	bytes              int64
}

// NewLimits returns an error if an option is missing.
func NewLimits(o LimitOptions) (*Limits, error) {
	if o.Clock == nil || o.Refused == nil {
		return nil, errors.New("limits: Clock and Refused are required")
	}
	return &Limits{
		o: o, maxBodies: maxBodies, maxConnections: maxConnections, maxArriving: maxArriving, maxOfSource: maxOfSource,
		connections: map[*connection]struct{}{}, sources: map[string]*source{}, admitted: make(chan *connection, maxConnections),
	}, nil
}

// connectionKey is the context key of the connection of a request.
type connectionKey struct{}

// Apply makes the server enforce the limits, and returns the listener to serve on. Add TLS above it, so that connections
// without a handshake count.
func (l *Limits) Apply(server *http.Server, inner net.Listener) net.Listener {
	server.Handler = l.handler(server.Handler)
	server.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		return context.WithValue(ctx, connectionKey{}, connectionOf(c))
	}
	server.ConnState = func(c net.Conn, state http.ConnState) {
		switch state {
		case http.StateActive:
			l.enter(connectionOf(c), arriving)
		case http.StateIdle:
			l.enter(connectionOf(c), idle)
		case http.StateNew, http.StateHijacked, http.StateClosed:
		}
	}
	return &listener{Listener: inner, limits: l, failed: make(chan error, 1)}
}

// handler limits the bodies of requests. The inner handler closes the body as soon as it does not need the bytes.
func (l *Limits) handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, _ := r.Context().Value(connectionKey{}).(*connection)
		if l.crowded() {
			// The client must not send its next call over a connection that is about to make room.
			w.Header().Set("Connection", "close")
		}
		if r.Body == http.NoBody {
			l.enter(c, working)
		} else {
			c.readUntil(l.o.Clock.Now().Add(bodyTakes))
			defer l.release(c)
			r.Body = &body{ReadCloser: http.MaxBytesReader(w, r.Body, maxBody), c: c}
		}
		next.ServeHTTP(w, r)
	})
}

// crowded reports whether there are too many connections.
func (l *Limits) crowded() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.waiting > 0 && len(l.connections) >= l.maxConnections
}

// body is the body of a request.
type body struct {
	io.ReadCloser
	c *connection
}

// Read implements io.Reader. It returns errOverloaded if the API server must repeat the request.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	l := b.c.limits
	switch {
	case !l.grow(b.c, n):
		return n, fmt.Errorf("%w: too many bytes of requests in flight", errOverloaded)
	case errors.Is(err, os.ErrDeadlineExceeded):
		l.o.Refused(RefusedSlow)
		return n, fmt.Errorf("%w: reading the body timed out after %s", errOverloaded, bodyTakes)
	case errors.Is(err, io.EOF):
		b.c.readUntil(time.Time{})
		l.enter(b.c, working)
	}
	return n, err
}

// Close implements io.Closer. The bytes of the body no longer count.
func (b *body) Close() error {
	b.c.limits.release(b.c)
	return b.ReadCloser.Close()
}

// grow counts n more bytes of the connection's body. It returns false if the body is refused.
func (l *Limits) grow(c *connection, n int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	c.count(int64(n))
	for !c.refused && l.bytes > l.maxBodies {
		chosen := l.heaviest()
		if chosen == nil {
			chosen = c
		}
		chosen.refused = true
		chosen.count(-chosen.bytes)
		l.o.Refused(RefusedBody)
		chosen.readUntil(time.Unix(1, 0)) // Unblocks a read in progress.
	}
	return !c.refused
}

// heaviest returns the connection whose body has been arriving for longest, of the source with most bytes. It returns nil if all bodies of
// that source have arrived: decoding cannot be stopped, and ends soon. A source that uses little therefore never loses to
// a source that uses more. It must be called with mu held.
func (l *Limits) heaviest() *connection {
	var most *source
	for _, s := range l.sources {
		if most == nil || s.bytes > most.bytes {
			most = s
		}
	}
	return l.oldest(func(c *connection) bool { return c.source == most && c.phase == arriving && c.bytes > 0 })
}

// release stops counting the body of the connection.
func (l *Limits) release(c *connection) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c.count(-c.bytes)
}

// oldest returns the connection that has been in its phase for longest, of those that match, or nil. It must be called with mu held.
func (l *Limits) oldest(matches func(*connection) bool) *connection {
	var oldest *connection
	for c := range l.connections {
		if matches(c) && (oldest == nil || c.since.Before(oldest.since)) {
			oldest = c
		}
	}
	return oldest
}

// enter changes the phase of an accepted connection.
func (l *Limits) enter(c *connection, p phase) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, open := l.connections[c]; !open {
		return
	}
	c.arrives(-1)
	c.phase, c.since = p, l.o.Clock.Now()
	c.arrives(1)
	if p == arriving {
		c.refused = false
	}
	l.admit()
}

// enqueue adds a connection. If too many wait, the source with most of them loses its last one.
func (l *Limits) enqueue(conn net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	name := sourceOf(conn.RemoteAddr().String())
	s := l.sources[name]
	if s == nil {
		s = &source{name: name}
		l.sources[name] = s
	}
	s.waiting = append(s.waiting, &connection{Conn: conn, limits: l, source: s})
	if l.waiting++; l.waiting > maxWaiting {
		for _, other := range l.sources {
			if len(other.waiting) > len(s.waiting) {
				s = other
			}
		}
		last := len(s.waiting) - 1
		_ = s.waiting[last].Conn.Close() // An error has no remedy.
		s.waiting = s.waiting[:last]
		l.waiting--
		l.o.Refused(RefusedConnection)
	}
	l.admit()
}

// admit accepts the connections for which there is room. It begins with the source that has the fewest arriving ones. It must be called
// with mu held.
func (l *Limits) admit() {
	for l.waiting > 0 {
		var s *source
		for _, other := range l.sources {
			if len(other.waiting) > 0 && (s == nil || other.arriving < s.arriving) {
				s = other
			}
		}
		full := l.arriving >= l.maxArriving || s.arriving >= l.maxOfSource
		if (full || len(l.connections) >= l.maxConnections) && !l.makeRoom(s, full) {
			return
		}
		c := s.waiting[0]
		s.waiting = s.waiting[1:]
		l.waiting--
		s.accepted++
		l.connections[c] = struct{}{}
		c.since = l.o.Clock.Now()
		c.arrives(1)
		l.admitted <- c
	}
}

// makeRoom closes a connection for one of the source: the oldest one that is slow or idle. A connection is slow only if its source has
// more arriving ones, because a burst of ordinary calls can make all of its connections slow. makeRoom returns false if there is
// none. It must be called with mu held.
func (l *Limits) makeRoom(s *source, onlyArriving bool) bool {
	now := l.o.Clock.Now()
	c := l.oldest(func(c *connection) bool {
		slow := c.phase == arriving && now.Sub(c.since) >= bodyTakes && c.source.arriving > s.arriving
		return slow || !onlyArriving && c.phase == idle && now.Sub(c.since) >= idleTakes
	})
	if c == nil {
		return false
	}
	l.o.Refused(RefusedConnection)
	l.remove(c)
	_ = c.Conn.Close() // An error has no remedy.
	return true
}

// remove stops counting the connection. It must be called with mu held.
func (l *Limits) remove(c *connection) {
	if _, open := l.connections[c]; open {
		delete(l.connections, c)
		c.count(-c.bytes)
		c.arrives(-1)
		s := c.source
		if s.accepted--; s.accepted == 0 && len(s.waiting) == 0 {
			delete(l.sources, s.name)
		}
	}
}

// sourceOf returns the name of the source of an address. If it cannot parse the address, it returns it unchanged.
func sourceOf(remote string) string {
	peer, err := netip.ParseAddrPort(remote)
	if err != nil {
		return remote
	}
	address := peer.Addr().Unmap().WithZone("")
	if address.Is4() {
		return address.String()
	}
	network, _ := address.Prefix(64) // An IPv6 address has this prefix.
	return network.String()
}

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

// connection is a connection that waits to be accepted, or that was accepted. Its fields are guarded by limits.mu.
type connection struct {
	net.Conn

	limits *Limits
	source *source
	phase  phase
	// since is the beginning of the phase.
	since time.Time
	// bytes is the size of the body that is being read or decoded. refused is set if it must not be read.
	bytes   int64
	refused bool
}

// connectionOf returns the connection below TLS, if any.
func connectionOf(c net.Conn) *connection {
	if encrypted, ok := c.(*tls.Conn); ok {
		c = encrypted.NetConn()
	}
	own, _ := c.(*connection) // The listener returns only these.
	return own
}

// count adds to the bytes of the connection. It must be called with mu held.
func (c *connection) count(n int64) {
	c.bytes += n
	c.source.bytes += n
	c.limits.bytes += n
}

// arrives adds to the number of arriving connections if the connection is one. It must be called with mu held.
func (c *connection) arrives(n int) {
	if c.phase == arriving {
		c.source.arriving += n
		c.limits.arriving += n
	}
}

// readUntil sets the deadline of reads. An error means that the connection is closed.
func (c *connection) readUntil(t time.Time) { _ = c.SetReadDeadline(t) }

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
	c.limits.admit()
	c.limits.mu.Unlock()
	return c.Conn.Close()
}

// listener accepts the connections that its limits admit.
type listener struct {
	net.Listener
	limits *Limits
	// begin starts receive.
	begin sync.Once
	// failed receives the errors of the inner listener. It is closed after the inner listener.
	failed chan error
}

// receive accepts connections, so that one that has to wait does not delay those of other sources.
func (l *listener) receive() {
	for {
		conn, err := l.Listener.Accept()
		switch {
		case err == nil:
			l.limits.enqueue(conn)
		case errors.Is(err, net.ErrClosed):
			l.limits.drop()
			close(l.failed)
			return
		default:
			l.failed <- err
		}
	}
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	l.begin.Do(func() { go l.receive() })
	for {
		// Connections become slow and idle without an event.
		later := l.limits.o.Clock.NewTimer(time.Second)
		select {
		case c := <-l.limits.admitted:
			later.Stop()
			return c, nil
		case err, open := <-l.failed:
			later.Stop()
			if !open {
				err = net.ErrClosed
			}
			return nil, err
		case <-later.C():
			l.limits.mu.Lock()
			l.limits.admit()
			l.limits.mu.Unlock()
		}
	}
}

// drop closes the connections that wait.
func (l *Limits) drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.sources {
		for _, c := range s.waiting {
			_ = c.Conn.Close() // An error has no remedy.
		}
		l.waiting -= len(s.waiting)
		s.waiting = nil
	}
}
