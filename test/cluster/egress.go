// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"sigs.k8s.io/yaml"
)

const egressConfigFile = "egress.yaml"

// egress is the socket by which the API server's connections into the cluster
// network come to this process. A socket file and not a port, because the API
// server can do HTTP CONNECT over TCP with TLS only.
type egress struct {
	listener net.Listener
	dir      string
}

// newEgress listens on a socket in a folder of its own: the path of a socket may
// have about a hundred characters only, and a test's folder often has more.
func newEgress(ctx context.Context) (*egress, error) {
	dir, err := os.MkdirTemp("", "prebind-")
	if err != nil {
		return nil, fmt.Errorf("make a folder for the egress socket: %w", err)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", filepath.Join(dir, "egress.sock"))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen on the egress socket (is TMPDIR too long a path?): %w", err), os.RemoveAll(dir))
	}
	return &egress{listener: listener, dir: dir}, nil
}

// config is the API server's EgressSelectorConfiguration.
func (e *egress) config() ([]byte, error) {
	return yaml.Marshal(map[string]any{
		"apiVersion": "apiserver.k8s.io/v1beta1",
		"kind":       "EgressSelectorConfiguration",
		"egressSelections": []any{map[string]any{
			"name": "cluster",
			"connection": map[string]any{
				"proxyProtocol": "HTTPConnect",
				"transport":     map[string]any{"uds": map[string]any{"udsName": e.listener.Addr().String()}},
			},
		}},
	})
}

func (e *egress) close() error {
	err := e.listener.Close()
	if errors.Is(err, net.ErrClosed) {
		err = nil // by the server that used it
	}
	return errors.Join(err, os.RemoveAll(e.dir))
}
