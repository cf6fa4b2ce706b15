// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

const (
	// maxBody is the longest review that the API server sends for a Binding that
	// Prebind can allow. All annotations of an object have at most 256 KiB. JSON
	// escapes a byte with up to six, which makes 1.5 MiB. The rest is for the user's
	// groups and extra values, which come from headers of at most 1 MiB and usually
	// have less than 1 KiB, and for labels.
	maxBody = 2 << 20
	// maxBodies bounds the bytes of all bodies that are being read or decoded. Decoding
	// takes up to three times as much memory for a moment. An ordinary review has 2 KiB.
	maxBodies = 16 * maxBody
	// maxConnections bounds the open connections. The API server speaks HTTP/1.1, so
	// this also bounds the concurrent calls. One takes some 60 KiB.
	maxConnections = 1024
	// bodyTakes bounds the time to read a body. It has nothing to do with the time that
	// a call is held.
	bodyTakes = 5 * time.Second
	// writeTakes bounds each write of an answer, for a peer that does not read.
	writeTakes = 5 * time.Second
)

// Reasons for which Limits refuse something. They are values of a label of the metrics.
const (
	// RefusedConnection is a connection that was closed because there were too many.
	RefusedConnection = "connections"
	// RefusedBody is a body that was not read to its end because all bodies together
	// were too large.
	RefusedBody = "bodies"
	// RefusedSlow is a body that took too long to arrive.
	RefusedSlow = "slow"
)

// RefusalReasons returns all reasons; the caller owns the slice.
func RefusalReasons() []string { return []string{RefusedConnection, RefusedBody, RefusedSlow} }

// errOverloaded is returned by the body of a request that has to be repeated.
var errOverloaded = errors.New("this replica has too many requests to read")

// LimitOptions are the options of Limits. All fields are required.
type LimitOptions struct {
	Clock clock.PassiveClock
	// Refused is called with one of RefusalReasons each time. It is called
	// concurrently, and must not block.
	Refused func(reason string)
}

// Limits bound the memory that peers can make a server use before anything is known
// about them: by the size and the number of the bodies that are read at a time, by the
// time to read one, and by the number of connections. When a limit is reached, the
// source address that uses most of it loses its oldest body or connection. An API
// server at an address of its own always gets through.
//
// Limits are an http.Handler middleware and a net.Listener wrapper for one server. They
// are safe for concurrent use.
type Limits struct {
	o                         LimitOptions
	maxBodies, maxConnections int64

	mu sync.Mutex
	// connections are the open ones by the peer's address and port.
	connections map[string]*connection
	// bodies are those that are being read or decoded, with their length so far.
	bodies map[*body]struct{}
	bytes  int64
}

// NewLimits checks the options and returns the limits of one server.
func NewLimits(o LimitOptions) (*Limits, error) {
	if o.Clock == nil || o.Refused == nil {
		return nil, errors.New("limits: Clock and Refused are required")
	}
	return &Limits{
		o: o, maxBodies: maxBodies, maxConnections: maxConnections,
		connections: map[string]*connection{}, bodies: map[*body]struct{}{},
	}, nil
}

// Handler returns the handler with limits on the bodies of its requests. It has to be
// the outermost one: also a request whose body nobody reads gets the deadline. The
// handler closes the body as soon as it does not need the bytes anymore.
func (l *Limits) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b := &body{
			ReadCloser: http.MaxBytesReader(w, r.Body, maxBody), limits: l, control: http.NewResponseController(w), peer: r.RemoteAddr,
			usage: usage{source: sourceOf(r.RemoteAddr), since: l.o.Clock.Now()},
		}
		b.deadline(b.since.Add(bodyTakes))
		defer l.answered(b)
		r.Body = b
		next.ServeHTTP(w, r)
	})
}

// body is the body of a request. Its usage is guarded by limits.mu.
type body struct {
	io.ReadCloser
	usage

	limits  *Limits
	control *http.ResponseController
	peer    string
	// evicted is set when it has to make room. Guarded by limits.mu.
	evicted bool
}

// Read implements io.Reader. It returns errOverloaded when the request has to be
// repeated.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	slow := errors.Is(err, os.ErrDeadlineExceeded)
	switch {
	case !b.limits.grow(b, n):
		return n, errOverloaded
	case slow:
		b.limits.o.Refused(RefusedSlow)
		return n, fmt.Errorf("%w: the body took longer than %s to arrive", errOverloaded, bodyTakes)
	case errors.Is(err, io.EOF):
		b.limits.arrived(b)
	}
	return n, err
}

// Close implements io.Closer. Nothing of the body is kept from then on.
func (b *body) Close() error {
	b.limits.release(b)
	return b.ReadCloser.Close()
}

// deadline sets the one of reading. A response that has none, such as that of a test,
// is not limited.
func (b *body) deadline(t time.Time) { _ = b.control.SetReadDeadline(t) }

// grow notes that the body has n more bytes. It returns false when the body has to make
// room: itself for the others, or because it was chosen before.
func (l *Limits) grow(b *body, n int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if b.evicted {
		return false
	}
	l.bodies[b] = struct{}{}
	b.weight += int64(n)
	l.bytes += int64(n)
	for l.bytes > l.maxBodies {
		chosen := victim(func(yield func(*body, usage) bool) {
			for other := range l.bodies {
				if !yield(other, other.usage) {
					return
				}
			}
		})
		if chosen.working {
			// Its bytes are about to be released, and it cannot be stopped.
			chosen = b
		}
		chosen.evicted = true
		l.forget(chosen)
		l.o.Refused(RefusedBody)
		if chosen == b {
			return false
		}
		// A read in progress ends.
		chosen.deadline(time.Unix(1, 0))
	}
	return true
}

// arrived notes that the whole body was read: from now on Prebind works on the call,
// and only the end of the connection ends its context.
func (l *Limits) arrived(b *body) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b.working = true
	b.deadline(time.Time{})
	if c := l.connections[b.peer]; c != nil {
		c.working = true
	}
}

// release returns the bytes of the body.
func (l *Limits) release(b *body) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forget(b)
}

// forget must be called with mu held.
func (l *Limits) forget(b *body) {
	l.bytes -= b.weight
	b.weight = 0
	delete(l.bodies, b)
}

// answered notes that the call is over. Nobody ends the read of a later one on the same
// connection in its place.
func (l *Limits) answered(b *body) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forget(b)
	if c := l.connections[b.peer]; c != nil {
		c.working, c.since = false, l.o.Clock.Now()
	}
}

// Listener returns the listener with a limit on the open connections. It belongs below
// TLS, so that also connections without a handshake count.
func (l *Limits) Listener(inner net.Listener) net.Listener {
	return &listener{Listener: inner, limits: l}
}

type listener struct {
	net.Listener
	limits *Limits
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &connection{Conn: conn, limits: l.limits, peer: conn.RemoteAddr().String()}
		if l.limits.admit(c) {
			return c, nil
		}
	}
}

// connection is one that counts. Its usage is guarded by limits.mu.
type connection struct {
	net.Conn
	usage

	limits *Limits
	peer   string
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
	if c.limits.connections[c.peer] == c {
		delete(c.limits.connections, c.peer)
	}
	c.limits.mu.Unlock()
	return c.Conn.Close()
}

// admit makes room for the connection. It returns false when it was closed instead.
func (l *Limits) admit(c *connection) bool {
	l.mu.Lock()
	c.usage = usage{source: sourceOf(c.peer), weight: 1, since: l.o.Clock.Now()}
	l.connections[c.peer] = c
	var chosen *connection
	if int64(len(l.connections)) > l.maxConnections {
		chosen = victim(func(yield func(*connection, usage) bool) {
			for _, other := range l.connections {
				if !yield(other, other.usage) {
					return
				}
			}
		})
	}
	if chosen != nil && chosen.source == c.source && c.since.Sub(chosen.since) < bodyTakes {
		// A source that uses most may have fresh connections in exchange for stuck ones.
		// More would cost a handshake for each connection that it opens.
		chosen = c
	}
	l.mu.Unlock()
	if chosen == nil {
		return true
	}
	l.o.Refused(RefusedConnection)
	_ = chosen.Close() // It is over in any case.
	return chosen != c
}
