// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

const loopback = "127.0.0.1"

// Reserved ports are below the range from which operating systems take the ports of outgoing connections, so that such a connection
// does not take the port of a component during its restart.
const (
	firstPort = 20000
	lastPort  = 31999
)

// ports are TCP ports that no other control plane uses, in this process or in another one, until they are released. A UDP socket with the
// same number keeps each of them: no component uses UDP, and the operating system closes the socket of a process that is killed. It is
// safe for concurrent use.
type ports struct {
	mu   sync.Mutex
	kept []net.PacketConn
}

// reserve returns a port that nothing listens on.
func (p *ports) reserve(ctx context.Context) (int, error) {
	const attempts = 1000
	p.mu.Lock()
	defer p.mu.Unlock()
	for range attempts {
		port := firstPort + rand.IntN(lastPort-firstPort+1)
		kept, err := (&net.ListenConfig{}).ListenPacket(ctx, "udp", address(port))
		if err != nil {
			continue
		}
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address(port))
		if err == nil {
			p.kept = append(p.kept, kept)
			return port, listener.Close()
		}
		_ = kept.Close()
	}
	return 0, fmt.Errorf("find a free port on %s: %d tries between %d and %d failed: stop something that listens there",
		loopback, attempts, firstPort, lastPort)
}

// release gives all ports back.
func (p *ports) release() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, kept := range p.kept {
		errs = append(errs, kept.Close())
	}
	p.kept = nil
	return errors.Join(errs...)
}

// ReserveAddress returns a loopback address that nothing listens on and that no
// control plane or caller of this method, here or in another process, gets until
// the cluster is stopped. It is for servers that belong to the cluster, such as
// webhooks.
func (c *Cluster) ReserveAddress(ctx context.Context) (string, error) {
	port, err := c.reserved.reserve(ctx)
	if err != nil {
		return "", err
	}
	return address(port), nil
}

func address(port int) string { return net.JoinHostPort(loopback, strconv.Itoa(port)) }
