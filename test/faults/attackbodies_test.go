// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/prebind/prebind/webhook"
)

const (
	// bodies is the number of connections of a burst. Each connection sends a body without its last byte.
	bodies = 64
	// largestBody and smallestBody limit the size of bodies, in bytes. If a replica rejects a body, the next burst sends a
	// smaller one.
	largestBody, smallestBody = 8 << 20, 64 << 10
	// bodyHeld is the maximum time that a connection waits for the replica to close it.
	bodyHeld = 20 * time.Second
	// bursts is the maximum number of bursts.
	bursts = 12
)

// post sends slow bodies directly to the replicas from a separate loopback address.
func (a *attack) post(ctx context.Context, rng *rand.Rand) {
	size := largestBody
	for n := 0; n < bursts && ctx.Err() == nil; n++ {
		to := a.w.replicas[rng.IntN(len(a.w.replicas))].WebhookAddress()
		var all sync.WaitGroup
		taken := make(chan bool, bodies)
		for range bodies {
			all.Go(func() {
				err := slowBody(ctx, to, size)
				a.note("slow body", err)
				taken <- err == nil
			})
		}
		all.Wait()
		close(taken)
		took := 0
		for ok := range taken {
			if ok {
				took++
			}
		}
		if took == 0 {
			size = max(size/4, smallestBody)
		}
		pause(ctx, 2*time.Second)
	}
}

// slowBody posts a review without its last byte. It returns an error if the replica does not read all other bytes.
func slowBody(ctx context.Context, to string, size int) error {
	ctx, cancel := context.WithTimeout(ctx, bodyHeld)
	defer cancel()
	dialer := tls.Dialer{
		NetDialer: &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}},
		Config:    &tls.Config{InsecureSkipVerify: true},
	}
	conn, err := dialer.DialContext(ctx, "tcp", to)
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	head := fmt.Sprintf("POST %s?timeout=30s HTTP/1.1\r\nHost: prebind\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", webhook.Path, size)
	if _, err := io.WriteString(conn, head+`{"kind":"`); err != nil {
		return err
	}
	chunk := bytes.Repeat([]byte("x"), 64<<10)
	for left := size - len(`{"kind":"`) - 1; left > 0; {
		n, err := conn.Write(chunk[:min(left, len(chunk))])
		if err != nil {
			return err
		}
		left -= n
	}
	_, err = conn.Read(make([]byte, 1))
	if netErr := net.Error(nil); errors.As(err, &netErr) && netErr.Timeout() {
		return nil // The replica still waits for the last byte.
	}
	if err == nil {
		err = errors.New("the replica answered before the last byte")
	}
	return err
}
