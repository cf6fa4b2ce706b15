// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"

	"github.com/prebind/prebind/binder"
)

func limitsOf(t testing.TB) *Limits {
	t.Helper()
	l, err := NewLimits(LimitOptions{Clock: clock.RealClock{}, Refused: func(string) {}})
	require.NoError(t, err)
	return l
}

// pass lets the time of a bubble pass.
func pass(d time.Duration) { <-time.After(d) }

// from is a connection from an address of the test's choice.
type from struct {
	net.Conn
	address net.TCPAddr
}

func (f from) RemoteAddr() net.Addr { return &f.address }

// limited is a server in memory, with a handler that answers reviews.
type limited struct {
	*pipe
	limits  *Limits
	mu      sync.Mutex
	port    int
	refused []string
	// hold ends the calls of the pods that are named so.
	hold chan struct{}
}

func newLimited(t *testing.T) *limited {
	t.Helper()
	s := &limited{pipe: &pipe{conns: make(chan net.Conn), closed: make(chan struct{})}, hold: make(chan struct{})}
	limits, err := NewLimits(LimitOptions{Clock: clock.RealClock{}, Refused: s.count})
	require.NoError(t, err)
	s.limits = limits
	handler := handlerOf(t, func(ctx context.Context, _ binder.Request) binder.Decision {
		select {
		case <-s.hold:
		case <-ctx.Done():
		}
		return binder.Decision{PassThrough: true}
	})
	server := plainServer(t, handler, limits)
	server.ErrorLog = log.New(io.Discard, "", 0)
	served := make(chan error, 1)
	go func() { served <- server.Serve(limits.Listener(s)) }()
	t.Cleanup(func() {
		require.NoError(t, server.Close())
		require.ErrorIs(t, <-served, http.ErrServerClosed)
	})
	return s
}

func (s *limited) count(reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused = append(s.refused, reason)
}

// used returns the bytes of all bodies and the number of the connections.
func (s *limited) used() (bytes int64, connections int) {
	s.limits.mu.Lock()
	defer s.limits.mu.Unlock()
	return s.limits.bytes, len(s.limits.connections)
}

// told returns the reasons of the refusals.
func (s *limited) told() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.refused)
}

// call opens a connection from the address and sends a review of this length, but for
// the bytes that are left out. The channel gets the answer, or the error of the connection.
func (s *limited) call(t *testing.T, address string, length, leftOut int) <-chan string {
	t.Helper()
	s.port++
	client, server := net.Pipe()
	s.conns <- from{Conn: server, address: net.TCPAddr{IP: net.ParseIP(address), Port: s.port}}
	t.Cleanup(func() { _ = client.Close() })
	review := string(read(t, "allowed.request.json"))
	review += strings.Repeat(" ", length-len(review))
	answer := make(chan string, 1)
	go func() {
		_, err := fmt.Fprintf(client, "POST %s?timeout=10s HTTP/1.1\r\nHost: prebind\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
			Path, length, review[:len(review)-leftOut])
		if err != nil {
			answer <- err.Error()
		}
	}()
	go func() {
		all, err := io.ReadAll(client)
		if err != nil {
			all = []byte(err.Error())
		}
		answer <- string(all)
	}()
	synctest.Wait()
	return answer
}

// idle opens a connection from one address and sends nothing. The channel gets the error
// that ends it.
func (s *limited) idle(t *testing.T) <-chan error {
	t.Helper()
	s.port++
	client, server := net.Pipe()
	s.conns <- from{Conn: server, address: net.TCPAddr{IP: net.ParseIP("10.0.0.2"), Port: s.port}}
	t.Cleanup(func() { _ = client.Close() })
	ended := make(chan error, 1)
	go func() {
		_, err := client.Read(make([]byte, 1))
		ended <- err
	}()
	synctest.Wait()
	return ended
}

// TestLimits_SlowBodies: one address that fills the bytes of all bodies loses its own
// oldest one to another address.
func TestLimits_SlowBodies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newLimited(t)
		s.limits.maxBodies = 3 * maxBody
		var stalled []<-chan string
		for range 3 {
			stalled = append(stalled, s.call(t, "10.0.0.2", maxBody, 1))
			pass(time.Millisecond)
		}
		begin := time.Now()
		close(s.hold)
		honest := s.call(t, "10.0.0.1", 4<<10, 0)
		bytes, _ := s.used()
		assert.Equal(t, int64(2*(maxBody-1)), bytes, "the bytes of the oldest are free again")
		first := <-stalled[0]
		assert.True(t, strings.HasPrefix(first, "HTTP/1.1 503"), "%.60q", first)
		assert.Contains(t, first, "Retry-After: 1\r\n")
		assert.Contains(t, first, "Connection: close\r\n")
		assert.Zero(t, time.Since(begin), "at once")
		for _, other := range stalled[1:] {
			answer := <-other
			assert.True(t, strings.HasPrefix(answer, "HTTP/1.1 503"), "%.60q", answer)
			assert.Contains(t, answer, "timed out after 5s")
		}
		assert.LessOrEqual(t, time.Since(begin), bodyTakes)
		assert.Equal(t, []string{RefusedBody, RefusedSlow, RefusedSlow}, s.told())
		bytes, _ = s.used()
		assert.Zero(t, bytes)
		select {
		case answer := <-honest:
			t.Errorf("the connection should stay open: %.60q", answer)
		default:
		}
	})
}

// TestLimits_Connections: one address that fills all connections loses its oldest one
// to another address, and keeps those whose calls Prebind works on.
func TestLimits_Connections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newLimited(t)
		s.limits.maxConnections = 3
		held := s.call(t, "10.0.0.2", 4<<10, 0)
		pass(time.Millisecond)
		slow := s.call(t, "10.0.0.2", 4<<10, 1)
		pass(time.Millisecond)
		slower := s.call(t, "10.0.0.2", 4<<10, 1)
		pass(time.Millisecond)
		s.call(t, "10.0.0.1", 4<<10, 0)
		answer := <-slow
		assert.NotContains(t, answer, "HTTP/1.1 2", "it is closed")
		for _, other := range []<-chan string{held, slower} {
			select {
			case answer := <-other:
				t.Errorf("it should stay open: %.60q", answer)
			default:
			}
		}
		assert.Equal(t, []string{RefusedConnection}, s.told())
		_, connections := s.used()
		assert.Equal(t, 3, connections)
	})
}

// TestLimits_OwnConnections: the address that uses most loses its own new connections,
// which costs no handshake, until its old ones are stuck.
func TestLimits_OwnConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newLimited(t)
		s.limits.maxConnections = 2
		first := s.idle(t)
		second := s.idle(t)
		pass(bodyTakes - time.Millisecond)
		require.Error(t, <-s.idle(t), "the first two are not stuck yet")
		pass(time.Millisecond)
		s.idle(t)
		select {
		case err := <-first:
			require.ErrorIs(t, err, io.EOF)
		case err := <-second:
			require.ErrorIs(t, err, io.EOF)
		}
		_, connections := s.used()
		assert.Equal(t, 2, connections)
	})
}

// TestLimits_BodyTooLarge: a body that is announced as too large, or is, is refused
// before it is read to its end.
func TestLimits_BodyTooLarge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newLimited(t)
		answer := <-s.call(t, "10.0.0.2", maxBody+1, maxBody-4<<10)
		assert.True(t, strings.HasPrefix(answer, "HTTP/1.1 413"), "%.60q", answer)
		bytes, _ := s.used()
		assert.Zero(t, bytes)
	})
}

// TestLimits_UnreadAnswer: a peer that does not read its answer does not keep the
// connection.
func TestLimits_UnreadAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newLimited(t)
		client, server := net.Pipe()
		defer client.Close()
		s.conns <- from{Conn: server, address: net.TCPAddr{IP: net.ParseIP("10.0.0.2"), Port: 1}}
		_, err := fmt.Fprintf(client, "GET %s HTTP/1.1\r\nHost: prebind\r\n\r\n", Path)
		require.NoError(t, err)
		pass(writeTakes + time.Second)
		synctest.Wait()
		_, err = client.Write([]byte("G"))
		require.ErrorIs(t, err, io.ErrClosedPipe)
		_, connections := s.used()
		assert.Zero(t, connections)
	})
}
