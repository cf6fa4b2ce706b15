// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/prebind/prebind/test/cluster"
)

// The test binary plays other processes when these are set.
const (
	roleEnv    = "PREBIND_TEST_ROLE"
	addressEnv = "PREBIND_TEST_ADDRESS"
)

// play runs the test binary as one of a family of processes, each of which holds
// a connection to the test as its sign of life.
func play(role string) int {
	conn, err := net.Dial("tcp", os.Getenv(addressEnv)) //nolint:noctx // a process of its own, which has no context
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if role == "parent" {
		child, err := cluster.NewProcess(cluster.ProcessOptions{
			Name:    "child",
			Path:    os.Args[0],
			Env:     []string{roleEnv + "=child"},
			LogFile: filepath.Join(os.TempDir(), fmt.Sprintf("prebind-child-%d.log", os.Getpid())),
		})
		if err == nil {
			err = child.Start()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer func() { _ = os.Remove(child.LogFile()) }()
	}
	if _, err := fmt.Fprintln(conn, role); err != nil {
		return 1
	}
	_, _ = io.Copy(io.Discard, conn) // until the test closes it
	return 0
}

func TestChildrenEndWithTheirParent(t *testing.T) {
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })

	parent := exec.CommandContext(t.Context(), os.Args[0])
	parent.Env = append(os.Environ(), roleEnv+"=parent", addressEnv+"="+listener.Addr().String(), "TMPDIR="+t.TempDir())
	parent.Stderr = t.Output()
	require.NoError(t, parent.Start())
	t.Cleanup(func() { _ = parent.Process.Kill(); _ = parent.Wait() })

	conns := map[string]*bufio.Reader{}
	for range 2 {
		conn, err := listener.Accept()
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
		reader := bufio.NewReader(conn)
		role, err := reader.ReadString('\n')
		require.NoError(t, err)
		conns[role] = reader
	}
	require.Contains(t, conns, "child\n")

	require.NoError(t, parent.Process.Kill(), "kill -9 the parent")
	_, err = conns["child\n"].ReadByte()
	assert.ErrorIs(t, err, io.EOF, "the child's connection closes when the child ends")
}
