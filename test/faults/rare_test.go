// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/install"
)

var rare = flag.Bool("rare", false, "Run the tests of rare conditions: a minute without space for etcd, and two versions of the API server.")

// olderKubernetes is a version that test/kubernetes builds. The newer API server has that of test/controlplane.
const olderKubernetes = "1.36"

// TestRare runs the seed's load in rare conditions of the control plane.
func TestRare(t *testing.T) {
	if !*rare {
		t.Skip("it runs only with -rare")
	}
	binary, err := install.Build(t.Context(), install.BuildOptions{Dir: t.TempDir(), Race: true, Clock: true})
	require.NoError(t, err)
	aMinute := func(kind string) []fault {
		return []fault{{kind: kind, target: cluster.Etcd, at: 10 * time.Second, length: time.Minute}}
	}
	run := func(t *testing.T, o cluster.Options, disk string, schedule []fault) {
		w := newWorld(t, binary, replicas, o)
		w.disk = disk
		l := newLoad(w, *seed)
		rest := w.endure(t, l, newAttack(t, w), *seed, schedule)
		l.summary(t, len(schedule), rest)
	}
	t.Run("quota of etcd", func(t *testing.T) {
		run(t, cluster.Options{}, "", aMinute("quota of etcd"))
	})
	t.Run("disk of etcd", func(t *testing.T) {
		disk := t.TempDir()
		if out, err := exec.CommandContext(t.Context(), "mount", "-t", "tmpfs", "-o", "size=1g", "tmpfs", disk).CombinedOutput(); err != nil {
			t.Skipf("it needs root on Linux, to mount a small disk for etcd: %v %s", err, out)
		}
		t.Cleanup(func() { assert.NoError(t, exec.Command("umount", disk).Run()) }) //nolint:noctx // The context of the test has ended.
		run(t, cluster.Options{ExtraArgs: map[string][]string{cluster.Etcd: {"--data-dir=" + filepath.Join(disk, "etcd")}}}, disk, aMinute("full disk of etcd"))
	})
	t.Run("two versions", func(t *testing.T) {
		schedule := draw(*seed, *length, 1)
		for i := range schedule {
			if f := &schedule[i]; f.target == cluster.APIServer && i%2 == 0 {
				f.target = cluster.OtherAPIServer
			}
		}
		run(t, cluster.Options{Beside: olderKubernetes}, "", schedule)
	})
}

// fill keeps the disk full until the returned function is called.
func fill(ctx context.Context, t *testing.T, disk string) func() {
	t.Helper()
	name := filepath.Join(disk, "filler")
	file, err := os.Create(name)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(ctx)
	over := make(chan struct{})
	var failed error
	go func() {
		defer close(over)
		for content := make([]byte, 64<<10); ctx.Err() == nil; {
			if _, err := file.Write(content); err != nil {
				failed = err
				pause(ctx, 10*time.Millisecond)
			}
		}
	}()
	return func() {
		stop()
		<-over
		assert.ErrorIs(t, failed, syscall.ENOSPC, "the disk was full")
		assert.NoError(t, file.Close())
		assert.NoError(t, os.Remove(name))
	}
}
