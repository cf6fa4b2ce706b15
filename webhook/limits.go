// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
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
// Limits are an http.Handler middleware and a net.Listener wrapper for one server. They are safe for concurrent use.
type Limits struct {
	o                                        LimitOptions
	maxBodies                                int64
	maxConnections, maxArriving, maxOfSource int
	// wake receives when a connection may have made room for another one.
	wake chan struct{}
	// waiting is the number of connections that wait to be accepted. Accept counts one before it looks for room.
	waiting atomic.Int64

	mu sync.Mutex
	// connections contains the open connections by address and port of the peer.
	connections map[string]*connection
	// bodies contains the bodies that are being read or decoded.
	bodies map[*body]struct{}
	bytes  int64
}

// NewLimits returns an error if an option is missing.
func NewLimits(o LimitOptions) (*Limits, error) {
	if o.Clock == nil || o.Refused == nil {
		return nil, errors.New("limits: Clock and Refused are required")
	}
	return &Limits{
		o: o, maxBodies: maxBodies, maxConnections: maxConnections, maxArriving: maxArriving, maxOfSource: maxOfSource,
		wake:        make(chan struct{}, 1),
		connections: map[string]*connection{}, bodies: map[*body]struct{}{},
	}, nil
}

// Handler returns a handler that limits the bodies of requests. It must be the outermost handler, so that the timeout also
// applies to a body that no handler reads. The inner handler closes the body as soon as it does not need the bytes.
func (l *Limits) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b := &body{
			ReadCloser: http.MaxBytesReader(w, r.Body, maxBody), limits: l, control: http.NewResponseController(w),
			peer: r.RemoteAddr, source: sourceOf(r.RemoteAddr), since: l.o.Clock.Now(),
		}
		b.deadline(b.since.Add(bodyTakes))
		l.enter(b, arriving)
		defer l.enter(b, idle)
		r.Body = b
		next.ServeHTTP(w, r)
	})
}

// body is the body of a request.
type body struct {
	io.ReadCloser

	limits       *Limits
	control      *http.ResponseController
	peer, source string
	// since is the beginning of the request.
	since time.Time

	// The following fields are guarded by limits.mu. phase is the phase of the request, and bytes is the number of counted
	// bytes. evicted is set when the body is refused.
	phase   phase
	bytes   int64
	evicted bool
}

// Read implements io.Reader. It returns errOverloaded if the API server must repeat the request.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	slow := errors.Is(err, os.ErrDeadlineExceeded)
	switch {
	case !b.limits.grow(b, n):
		return n, fmt.Errorf("%w: too many bytes of requests in flight", errOverloaded)
	case slow:
		b.limits.o.Refused(RefusedSlow)
		return n, fmt.Errorf("%w: reading the body timed out after %s", errOverloaded, bodyTakes)
	case errors.Is(err, io.EOF):
		b.limits.enter(b, working)
	}
	return n, err
}

// Close implements io.Closer. The bytes of the body no longer count.
func (b *body) Close() error {
	b.limits.mu.Lock()
	b.limits.forget(b)
	b.limits.mu.Unlock()
	return b.ReadCloser.Close()
}

// deadline sets the read deadline, if the connection supports it.
func (b *body) deadline(t time.Time) { _ = b.control.SetReadDeadline(t) }

// grow counts n more bytes of the body. It returns false if the body is refused.
func (l *Limits) grow(b *body, n int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if b.evicted {
		return false
	}
	l.bodies[b] = struct{}{}
	b.bytes += int64(n)
	l.bytes += int64(n)
	for l.bytes > l.maxBodies {
		chosen := victim(slices.Collect(maps.Keys(l.bodies)))
		if chosen.phase == working {
			// Prebind is decoding the chosen body. Decoding cannot be stopped and ends soon.
			chosen = b
		}
		chosen.evicted = true
		l.forget(chosen)
		l.o.Refused(RefusedBody)
		if chosen == b {
			return false
		}
		// Unblock a read in progress.
		chosen.deadline(time.Unix(1, 0))
	}
	return true
}

// enter records that the request of the body has begun, that Prebind has read and now processes it, or that it was answered.
func (l *Limits) enter(b *body, p phase) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b.phase = p
	switch p {
	case arriving:
	case working:
		b.deadline(time.Time{})
	case idle:
		l.forget(b)
	}
	if c := l.connections[b.peer]; c != nil {
		c.phase, c.since = p, l.o.Clock.Now()
		l.signal()
	}
}

// forget stops counting the bytes of the body. It must be called with mu held.
func (l *Limits) forget(b *body) {
	l.bytes -= b.bytes
	b.bytes = 0
	delete(l.bodies, b)
}
