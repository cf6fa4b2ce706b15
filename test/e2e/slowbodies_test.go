// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
	"github.com/prebind/prebind/test/install"
	"github.com/prebind/prebind/webhook"
)

const (
	// attackerAddress is the source of the attack. The API server calls from 127.0.0.1.
	attackerAddress = "127.0.0.2"
	// shippedMemoryLimit is the memory limit of the shipped container.
	shippedMemoryLimit = 512 << 20
	// bindsMeasured is the number of binds before the attack, and again during it.
	bindsMeasured = 1000
)

// TestSlowBodies_APIServerGetsThrough attacks one shipped replica from an address that differs from the API server. The API server
// still binds every pod, and the replica stays below its memory limit. The log contains the latencies and the memory.
func TestSlowBodies_APIServerGetsThrough(t *testing.T) {
	t.Parallel()
	// This replica is built without the race detector, which needs several times as much memory.
	binary, err := install.Build(t.Context(), install.BuildOptions{Dir: t.TempDir()})
	require.NoError(t, err)
	c := ownCluster(t, cluster.Options{}) // After the build, so that other tests can use a control plane in the meantime.
	w, err := newWorldWith(t.Context(), install.Options{Cluster: c, Binary: binary}, 1)
	require.NoError(t, err)
	replica := w.prebind.Replicas()[0]
	t.Cleanup(func() { assert.NoError(t, replica.Kill()) })
	b := newBench(t, w, nil)

	before := b.measureBinds("quiet")
	t.Logf("quiet:  %s, %s", before, memoryOf(t, replica.PID()))
	attack := startAttack(t, replica.WebhookAddress())
	during := b.measureBinds("attacked")
	t.Logf("attack: %s, %s; %d bodies stalled, %d connections refused or closed",
		during, memoryOf(t, replica.PID()), attack.stalled.Load(), attack.ended.Load())
	said, err := replica.Metrics(t.Context())
	require.NoError(t, err)
	for line := range strings.Lines(said) {
		if strings.HasPrefix(line, "prebind_webhook_refused_total") {
			t.Log(strings.TrimSpace(line))
		}
	}
	attack.stop()

	assert.GreaterOrEqual(t, attack.stalled.Load(), int64(60), "the attack should be one")
	assert.Less(t, peakMemory(t, replica.PID()), int64(shippedMemoryLimit), "the container would have been killed")
	require.NoError(t, replica.Err())
}

// latencies are sorted.
type latencies []time.Duration

func (l latencies) at(share float64) time.Duration {
	return l[min(int(share*float64(len(l))), len(l)-1)].Round(100 * time.Microsecond)
}

// String implements fmt.Stringer.
func (l latencies) String() string {
	return fmt.Sprintf("%d binds, p50 %s, p99 %s, max %s", len(l), l.at(0.5), l.at(0.99), l.at(1))
}

// measureBinds binds pods with four clients and returns the duration of each bind. Each bind must succeed.
func (b *bench) measureBinds(prefix string) latencies {
	b.t.Helper()
	const clients = 4
	var pods []string
	for i := range bindsMeasured {
		pod, err := b.createPod(prefix+"-"+strconv.Itoa(i), byHand)
		require.NoError(b.t, err)
		pods = append(pods, pod.Name)
	}
	took := make(latencies, len(pods))
	var next atomic.Int64
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(pods); i = int(next.Add(1)) - 1 {
				begin := time.Now()
				err := b.bindByHand(gen.Binding(gen.Pod(pods[i], gen.InNamespace(b.ns)), "node-1"))
				took[i] = time.Since(begin)
				assert.NoError(b.t, err)
			}
		})
	}
	wg.Wait()
	slices.Sort(took)
	return took
}

// attack is a set of clients. Each client holds a connection until the server closes it, and then opens another one, at most one per
// five seconds.
type attack struct {
	stop context.CancelFunc
	// stalled counts bodies that were sent without their last byte. ended counts connections that the server has closed.
	stalled, ended atomic.Int64
}

// startAttack returns when each client has sent its data or was disconnected.
func startAttack(t *testing.T, address string) *attack {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	a := &attack{stop: stop}
	var wg, first sync.WaitGroup
	t.Cleanup(wg.Wait)
	t.Cleanup(stop)
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(attackerAddress)}}
	secure := &tls.Dialer{NetDialer: dialer, Config: &tls.Config{InsecureSkipVerify: true}}
	crowd := func(clients int, dial func(ctx context.Context, network, address string) (net.Conn, error), send func(net.Conn) error) {
		for range clients {
			first.Add(1)
			wg.Go(func() {
				begun := sync.OnceFunc(first.Done)
				pause := time.NewTicker(5 * time.Second)
				defer pause.Stop()
				for ctx.Err() == nil {
					if conn, err := dial(ctx, "tcp", address); err == nil {
						a.hold(ctx, conn, send, begun)
					}
					a.ended.Add(1)
					begun()
					select {
					case <-pause.C:
					case <-ctx.Done():
					}
				}
			})
		}
	}
	crowd(60, secure.DialContext, a.body(8<<20))
	crowd(100, secure.DialContext, a.body(2<<20))
	crowd(100, secure.DialContext, a.body(64<<10))
	crowd(100, secure.DialContext, func(conn net.Conn) error { // An incomplete header.
		_, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: prebind\r\nX: %s", webhook.Path, strings.Repeat("x", 8<<10))
		return err
	})
	crowd(1200, dialer.DialContext, func(net.Conn) error { return nil }) // A connection without a handshake.
	first.Wait()
	return a
}

// body sends a body of the given length without its last byte.
func (a *attack) body(length int) func(net.Conn) error {
	body := bytes.Repeat([]byte(" "), length-1)
	return func(conn net.Conn) error {
		_, err := fmt.Fprintf(conn, "POST %s?timeout=10s HTTP/1.1\r\nHost: prebind\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", webhook.Path, length)
		if err == nil {
			_, err = conn.Write(body)
		}
		if err == nil {
			a.stalled.Add(1)
		}
		return err
	}
}

// hold sends the data, and reads until the server or the attack closes the connection.
func (a *attack) hold(ctx context.Context, conn net.Conn, send func(net.Conn) error, begun func()) {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if send(conn) != nil {
		return
	}
	begun()
	if response, err := http.ReadResponse(bufio.NewReader(conn), nil); err == nil {
		_ = response.Body.Close()
	}
}

// memoryOf describes the resident memory of a process: now, and at its peak.
func memoryOf(t *testing.T, pid int) string {
	t.Helper()
	return fmt.Sprintf("%d MiB resident, %d MiB at most", processMemory(t, pid, "VmRSS")>>20, peakMemory(t, pid)>>20)
}

func peakMemory(t *testing.T, pid int) int64 {
	t.Helper()
	return processMemory(t, pid, "VmHWM")
}

// processMemory returns a value of /proc/PID/status, in bytes.
func processMemory(t *testing.T, pid int, key string) int64 {
	t.Helper()
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(t, err)
	for line := range strings.Lines(string(content)) {
		if value, ok := strings.CutPrefix(line, key+":"); ok {
			kilobytes, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
			require.NoError(t, err)
			return kilobytes << 10
		}
	}
	t.Fatalf("/proc/%d/status has no %s", pid, key)
	return 0
}
