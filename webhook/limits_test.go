// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/prebind/prebind/binder"
)

// pass advances the time of a synctest bubble.
func pass(d time.Duration) { <-time.After(d) }

// from is a connection with a given remote address.
type from struct {
	net.Conn
	address net.TCPAddr
}

func (f from) RemoteAddr() net.Addr { return &f.address }

// limited is a server on in-memory connections.
type limited struct {
	*pipe
	limits  *limits
	mu      sync.Mutex
	port    int
	refused []string
	// decided is the number of calls that the engine has answered.
	decided atomic.Int32
	// hold ends all held calls when it is closed.
	hold chan struct{}
}

func newLimited(t *testing.T) *limited {
	t.Helper()
	s := &limited{hold: make(chan struct{})}
	handler := handlerOf(t, func(ctx context.Context, _ binder.Request) binder.Decision {
		select {
		case <-s.hold:
		case <-ctx.Done():
		}
		s.decided.Add(1)
		return binder.Decision{PassThrough: true}
	})
	s.pipe, s.limits = inMemory(t, handler, func(reason string) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.refused = append(s.refused, reason)
	})
	return s
}

// used returns the bytes of all bodies and the number of connections.
func (s *limited) used() (bytes int64, connections int) {
	s.limits.mu.Lock()
	defer s.limits.mu.Unlock()
	for c := range s.limits.open {
		bytes += c.bytes
	}
	return bytes, len(s.limits.open)
}

// refusals returns the reasons of all rejections.
func (s *limited) refusals() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.refused)
}

// connect opens a connection from the address.
func (s *limited) connect(t *testing.T, address string) net.Conn {
	t.Helper()
	s.port++
	client, server := net.Pipe()
	s.conns <- from{Conn: server, address: net.TCPAddr{IP: net.ParseIP(address), Port: s.port}}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// call opens a connection from the address and sends a review of this length without the last leftOut bytes. The channel
// receives the answer, or the error of the connection.
func (s *limited) call(t *testing.T, address string, length, leftOut int) <-chan string {
	t.Helper()
	client := s.connect(t, address)
	review := string(read(t, "allowed.request.json"))
	review += strings.Repeat(" ", length-len(review))
	answer := make(chan string, 1)
	go func() { // The server may not read everything.
		_, _ = fmt.Fprintf(client, "POST %s?timeout=10s HTTP/1.1\r\nHost: prebind\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
			Path, length, review[:len(review)-leftOut])
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

// idle opens a connection and sends nothing. The channel receives the error that ends the connection.
func (s *limited) idle(t *testing.T, address string) <-chan error {
	t.Helper()
	client := s.connect(t, address)
	ended := make(chan error, 1)
	go func() {
		_, err := client.Read(make([]byte, 1))
		ended <- err
	}()
	synctest.Wait()
	return ended
}

// TestLimits_SlowBodies checks that a source with large bodies leaves room for those of others, and that no other body matters to a
// small one.
func TestLimits_SlowBodies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newLimited(t)
		s.limits.maxBodies = 4 * maxBody
		begin := time.Now()
		var stalled []<-chan string
		for range 2 {
			stalled = append(stalled, s.call(t, "10.0.0.2", maxBody, 1))
		}
		refused := <-s.call(t, "10.0.0.2", maxBody, 1<<19)
		assert.True(t, strings.HasPrefix(refused, "HTTP/1.1 503"), "%.60q", refused)
		assert.Contains(t, refused, "Retry-After: 1\r\n")
		assert.Contains(t, refused, "Connection: close\r\n")
		assert.Zero(t, time.Since(begin), "the refusal has no delay")
		large := s.call(t, "10.0.0.1", maxBody/2, 0)
		bytes, _ := s.used()
		assert.Equal(t, int64(2*(maxBody-1)), bytes, "the large body was read, and its bytes are free")
		small := []<-chan string{s.call(t, "10.0.0.1", 4<<10, 0), s.call(t, "10.0.0.2", 4<<10, 0)}
		for _, other := range stalled {
			answer := <-other
			assert.True(t, strings.HasPrefix(answer, "HTTP/1.1 503"), "%.60q", answer)
			assert.Contains(t, answer, "timed out after 5s")
		}
		assert.LessOrEqual(t, time.Since(begin), bodyTakes)
		assert.Equal(t, []string{RefusedBody, RefusedSlow, RefusedSlow}, s.refusals())
		bytes, _ = s.used()
		assert.Zero(t, bytes)
		for _, held := range append(small, large) {
			select {
			case answer := <-held:
				t.Errorf("the call should be held: %.60q", answer)
			default:
			}
		}
	})
}

// TestLimits_Connections checks that a new connection waits while no other one is idle, and that one whose first request does not
// arrive ends in time.
func TestLimits_Connections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newLimited(t)
		s.limits.maxConnections = 2
		slow := s.idle(t, "10.0.0.2")
		pass(readHeaderTimeout / 2)
		held := s.call(t, "10.0.0.2", 4<<10, 0)
		third := s.idle(t, "10.0.0.1")
		pass(readHeaderTimeout/2 - time.Second)
		_, connections := s.used()
		assert.Equal(t, 2, connections, "the new one waits")
		pass(time.Second)
		require.ErrorIs(t, <-slow, io.EOF)
		synctest.Wait()
		_, connections = s.used()
		assert.Equal(t, 2, connections, "the new one is accepted")
		select {
		case err := <-third:
			t.Errorf("the third should stay open: %v", err)
		case answer := <-held:
			t.Errorf("the connection of a held call should stay open: %.60q", answer)
		default:
		}
		assert.Empty(t, s.refusals())
	})
}

// TestLimits_Burst checks that many ordinary calls of one source wait for each other, and that none of them loses its
// connection.
func TestLimits_Burst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newLimited(t)
		s.limits.maxConnections, s.limits.maxArriving = 20, 3
		close(s.hold)
		var answers []<-chan string
		for range 200 {
			answers = append(answers, s.call(t, "10.0.0.1", 4<<10, 0))
		}
		for _, answer := range answers {
			select {
			case a := <-answer:
				// The answer ends the connection while many are in use.
				assert.True(t, strings.HasPrefix(a, "HTTP/1.1 200"), "%.60q", a)
			case <-time.After(time.Second):
				// The connection stays open after its answer.
			}
		}
		_, connections := s.used()
		assert.Equal(t, 15, connections, "three quarters of the connections stay open")
		assert.Empty(t, s.refusals())
	})
}

// TestLimits_BurstOfOneClient checks that a burst of a client that reuses connections loses no call.
func TestLimits_BurstOfOneClient(t *testing.T) {
	handler := handlerOf(t, func(context.Context, binder.Request) binder.Decision {
		<-time.After(20 * time.Millisecond) // So that connections become idle while others wait.
		return binder.Decision{PassThrough: true}
	})
	server, address, roots := secureServer(t, func(*tls.Config) {})
	server.Register(Path, handler)
	server.limits.mu.Lock()
	server.limits.maxConnections, server.limits.maxArriving = 48, 16
	server.limits.mu.Unlock()
	trust := &tls.Config{RootCAs: roots, ServerName: "prebind.svc", MinVersion: tls.VersionTLS12}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: trust, MaxIdleConnsPerHost: 25}} // As in client-go.
	defer client.CloseIdleConnections()
	review := read(t, "allowed.request.json")
	var calls errgroup.Group
	for range 250 {
		calls.Go(func() error {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+address+Path+"?timeout=30s", bytes.NewReader(review))
			if err != nil {
				return err
			}
			answer, err := client.Do(request)
			if err != nil {
				return err
			}
			_, err = io.Copy(io.Discard, answer.Body)
			return errors.Join(err, answer.Body.Close())
		})
	}
	require.NoError(t, calls.Wait())
}

// TestLimits_SlowArrivals checks that a new source waits for slow connections of others for less time than its client gives a TLS
// handshake.
func TestLimits_SlowArrivals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newLimited(t)
		s.limits.maxConnections, s.limits.maxArriving = 4, 2
		close(s.hold)
		for i := range 4 {
			client := s.connect(t, fmt.Sprintf("10.0.0.%d", 2+i%2))
			go func() {
				pass(readHeaderTimeout - time.Second)
				_, _ = fmt.Fprintf(client, "POST %s HTTP/1.1\r\nHost: prebind\r\nContent-Length: 100\r\n\r\n", Path)
				_, _ = io.Copy(io.Discard, client)
			}()
		}
		synctest.Wait()
		s.call(t, "10.0.0.1", 4<<10, 0)
		pass(9 * time.Second) // A client of Go waits for 10 s.
		// The answer ends the connection if it is sent before the last slow one is closed.
		assert.Equal(t, int32(1), s.decided.Load(), "the call was answered")
	})
}

// TestLimits_OtherSources checks that a source with slow connections does not delay another one.
func TestLimits_OtherSources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newLimited(t)
		s.limits.maxArriving = 3
		for range 10 {
			s.idle(t, "10.0.0.2")
		}
		s.call(t, "10.0.0.1", 4<<10, 0)
		s.limits.mu.Lock()
		defer s.limits.mu.Unlock()
		phases := map[string]map[phase]int{"10.0.0.1/32": {}, "10.0.0.2/32": {}}
		for c := range s.limits.open {
			phases[c.source.String()][c.phase]++
		}
		assert.Equal(t, map[string]map[phase]int{"10.0.0.1/32": {working: 1}, "10.0.0.2/32": {arriving: 3}}, phases, "the call of the other source has arrived")
	})
}

// TestLimits_BodyTooLarge checks that a body that is too large is not read to its end.
func TestLimits_BodyTooLarge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newLimited(t)
		answer := <-s.call(t, "10.0.0.2", 2*maxBody, maxBody-1)
		assert.Regexp(t, `(?s)^HTTP/1.1 200.*"allowed":false.*"code":422`, answer)
		bytes, _ := s.used()
		assert.Zero(t, bytes)
	})
}

// TestLimits_UnreadAnswer checks that a peer that does not read the answer loses its connection.
func TestLimits_UnreadAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newLimited(t)
		client := s.connect(t, "10.0.0.2")
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

func TestSourceOf(t *testing.T) {
	cases := map[string]struct{ reason, remote, want string }{
		"IPv4":      {reason: "the port does not matter", remote: "10.1.2.3:4567", want: "10.1.2.3/32"},
		"Mapped":    {reason: "a mapped IPv4 address is the same source", remote: "[::ffff:10.1.2.3]:4567", want: "10.1.2.3/32"},
		"IPv6":      {reason: "a peer can choose the last 64 bits", remote: "[2001:db8:1:2:3:4:5:6]:4567", want: "2001:db8:1:2::/64"},
		"LinkLocal": {reason: "the interface does not matter", remote: "[fe80::1%eth0]:4567", want: "fe80::/64"},
		"Other":     {reason: "addresses that cannot be parsed are one source", remote: "pipe", want: netip.Prefix{}.String()},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) { assert.Equal(t, tc.want, sourceOf(tc.remote).String(), tc.reason) })
	}
}
