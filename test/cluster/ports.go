// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"strconv"
	"sync"
)

const loopback = "127.0.0.1"

// Reserved ports come from below the range that operating systems take the ports
// of outgoing connections from. So a component that is down for a restart does
// not lose its port to somebody's connection.
const (
	firstPort = 20000
	lastPort  = 31999
)

// ports are loopback ports that no other control plane takes, in this process or
// in another, until they are released. It is safe for concurrent use.
type ports struct {
	dir string

	mu    sync.Mutex
	locks []*fileLock
}

func newPorts() (*ports, error) {
	dir, err := CacheDir()
	if err != nil {
		return nil, err
	}
	return &ports{dir: filepath.Join(dir, "ports")}, nil
}

// reserve returns a port that nothing listens on.
func (p *ports) reserve(ctx context.Context) (int, error) {
	const attempts = 1000
	p.mu.Lock()
	defer p.mu.Unlock()
	for range attempts {
		port := firstPort + rand.IntN(lastPort-firstPort+1)
		lock, err := tryLock(filepath.Join(p.dir, strconv.Itoa(port)))
		if errors.Is(err, errLocked) {
			continue
		}
		if err != nil {
			return 0, err
		}
		if !canListen(ctx, port) {
			lock.release()
			continue
		}
		p.locks = append(p.locks, lock)
		return port, nil
	}
	return 0, fmt.Errorf("find a free port on %s: %d tries between %d and %d failed: stop something that listens there",
		loopback, attempts, firstPort, lastPort)
}

// release gives all ports back.
func (p *ports) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, lock := range p.locks {
		lock.release()
	}
	p.locks = nil
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

func canListen(ctx context.Context, port int) bool {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address(port))
	if err != nil {
		return false
	}
	return listener.Close() == nil
}

func address(port int) string { return net.JoinHostPort(loopback, strconv.Itoa(port)) }
