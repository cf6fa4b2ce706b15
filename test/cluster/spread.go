// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"net"
)

// spreadConnections gives connections to the API servers in turn, like a load balancer without health checks. A connection
// that an API server refuses goes to the other one.
func (c *Cluster) spreadConnections(ctx context.Context) error {
	var err error
	if c.spread, err = (&net.ListenConfig{}).Listen(ctx, "tcp", address(c.ports[bothAPIServers])); err != nil {
		return fmt.Errorf("listen for connections to the API servers: %w", err)
	}
	ports := [2]int{c.ports[APIServer], c.ports[OtherAPIServer]}
	ctx = context.WithoutCancel(ctx) // of Start
	go func() {
		for {
			client, err := c.spread.Accept()
			if err != nil {
				return // The cluster has been stopped.
			}
			go connect(ctx, client, ports[0], ports[1])
			ports[0], ports[1] = ports[1], ports[0]
		}
	}()
	return nil
}

// connect connects the client to the first port that accepts a connection.
func connect(ctx context.Context, client net.Conn, ports ...int) {
	for _, port := range ports {
		backend, err := (&net.Dialer{}).DialContext(ctx, "tcp", address(port))
		if err == nil {
			t := &tunnel{client: client, backend: backend}
			t.carry()
			t.close()
			return
		}
	}
	_ = client.Close()
}
