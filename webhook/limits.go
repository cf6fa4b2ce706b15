// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
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
	// smallBody is the size up to which no other body matters. Most reviews have 2 KiB.
	smallBody = 16 << 10
	// maxBodies is the maximum size of all larger bodies that are being read or decoded. Decoding can briefly need fifteen times
	// as much memory, because the entries of maps and lists are larger than their JSON.
	maxBodies = 4 * maxBody
	// maxConnections is the maximum number of accepted connections. With HTTP/1.1 this also limits concurrent calls. A
	// connection needs about 60 KiB.
	maxConnections = 1024
	// maxArriving is the number of arriving connections of a source from which on its new ones wait. The work of a TLS handshake
	// makes more of them slower together.
	maxArriving = 128
	// maxWaiting is the maximum number of connections that wait to be accepted. One needs less than 1 KiB.
	maxWaiting = 16384
	// bodyTakes is the timeout for reading a body. It does not include the hold.
	bodyTakes = 5 * time.Second
	// writeTakes is the timeout of each write of an answer.
	writeTakes = 5 * time.Second
)

// Reasons for which a Server rejects a connection or body. They are values of the metric label "reason".
const (
	// RefusedConnection means that an idle or waiting connection was closed because there were too many.
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

// limits limit the memory that unauthenticated peers can make a server use. They limit the size of a body, the size of all
// bodies that are read at the same time, the time for reading a body, and the number of connections. When the bodies become too
// large, those of the sources that use most bytes are rejected. When there are many connections, answers end them. When there
// are too many, new ones wait, and the oldest idle ones are closed: the API server is a source too, and no limit closes a
// connection that carries an ordinary review.
//
// limits are an http.Handler middleware and a net.Listener below TLS, so that connections without a handshake count. They are
// safe for concurrent use.
type limits struct {
	net.Listener

	clock clock.PassiveClock
	// refused is called with one of RefusalReasons for each rejection.
	refused                     func(reason string)
	maxBodies                   int64
	maxConnections, maxArriving int
	// writes sets the timeout of each write, because the server has none.
	writes bool
	// accepted and failed are the results of Accept.
	accepted chan *connection
	failed   chan error

	mu sync.Mutex
	// waiting are the connections that wait to be accepted, by source and in order. queued is their number.
	waiting map[netip.Prefix][]*connection
	queued  int
	// open contains the accepted connections.
	open map[*connection]struct{}
}

// newLimits returns limits that accept connections of the listener until it is closed.
func newLimits(inner net.Listener, c clock.PassiveClock, refused func(reason string)) *limits {
	l := &limits{
		Listener: inner, clock: c, refused: refused,
		maxBodies: maxBodies, maxConnections: maxConnections, maxArriving: maxArriving,
		accepted: make(chan *connection, maxConnections), failed: make(chan error),
		waiting: map[netip.Prefix][]*connection{}, open: map[*connection]struct{}{},
	}
	go l.receive()
	return l
}

// handler returns a handler that limits the bodies of requests. It must be the outermost handler, so that the timeout also
// applies to a body that no handler reads. The inner handler closes the body as soon as it does not need the bytes.
func (l *limits) handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, _ := r.Context().Value(connectionKey{}).(*connection) // withConnection has set it.
		_ = c.SetReadDeadline(l.clock.Now().Add(bodyTakes))      // An error means that the peer is gone.
		defer func() {
			l.forget(c)
			c.arrives = time.Time{}
		}()
		r.Body = &body{ReadCloser: http.MaxBytesReader(w, r.Body, maxBody), from: c}
		next.ServeHTTP(leaving{ResponseWriter: w, limits: l}, r)
	})
}

// leaving is a ResponseWriter that ends the connection with the answer while many are in use. The client knows it then, and sends
// no request on a connection that is about to be closed.
type leaving struct {
	http.ResponseWriter
	limits *limits
}

// WriteHeader implements http.ResponseWriter.
func (w leaving) WriteHeader(code int) {
	w.limits.mu.Lock()
	if w.limits.queued > 0 || len(w.limits.open) > w.limits.maxConnections*3/4 {
		w.Header().Set("Connection", "close")
	}
	w.limits.mu.Unlock()
	w.ResponseWriter.WriteHeader(code)
}

// body is the body of a request.
type body struct {
	io.ReadCloser
	from *connection
}

// Read implements io.Reader. It returns errOverloaded if the API server must repeat the request.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	l := b.from.limits
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		l.refused(RefusedSlow)
		return n, fmt.Errorf("%w: reading the body timed out after %s", errOverloaded, bodyTakes)
	case !l.grow(b.from, n):
		return n, fmt.Errorf("%w: too many bytes of requests in flight", errOverloaded)
	case errors.Is(err, io.EOF):
		b.from.enter(working)
		b.from.arrives = time.Time{}
		_ = b.from.SetReadDeadline(time.Time{}) // An error means that the peer is gone.
	}
	return n, err
}

// Close implements io.Closer. The bytes of the body no longer count.
func (b *body) Close() error {
	b.from.limits.forget(b.from)
	return b.ReadCloser.Close()
}

// forget stops counting the bytes of the body.
func (l *limits) forget(c *connection) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c.bytes = 0
}

// grow counts n more bytes of the body. It returns false if the body is refused: it is not small, and its source uses more bytes
// than are left. So one source can use half of the bytes.
func (l *limits) grow(c *connection, n int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	c.bytes += int64(n)
	if c.bytes <= smallBody {
		return true
	}
	left, ofSource := l.maxBodies, int64(0)
	for other := range l.open {
		if other.bytes > smallBody {
			left -= other.bytes
			if other.source == c.source {
				ofSource += other.bytes
			}
		}
	}
	if ofSource <= left {
		return true
	}
	c.bytes = 0
	l.refused(RefusedBody)
	return false
}
