// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prebind/prebind/test/bench/stat"
	"github.com/prebind/prebind/test/cluster"
)

// BenchmarkNodeMemory measures the memory of a replica with the plugins of nodes and without them, in a cluster with five
// agents per node. It uses the largest number of -scale-running. Each loop is a complete run: use -benchtime=1x.
func BenchmarkNodeMemory(b *testing.B) {
	last := (*fullRunning)[strings.LastIndex(*fullRunning, ",")+1:]
	running, err := strconv.Atoi(last)
	require.NoError(b, err, "-scale-running")
	m := newNodeMemory(b)
	for b.Loop() {
		out := &results{name: "node-memory"}
		require.NoError(b, m.weighBoth(b, out, scale{nodes: *fullNodes, running: []int{running}, settle: *fullSettle}))
		for _, metric := range memoryMetrics() {
			on, off := stat.Values(out.samples, metric, nodePlugins), stat.Values(out.samples, metric, prebind)
			b.Logf("%s: %.1f with the plugins of nodes, %.1f without, difference %.1f", metric, on[0], off[0], on[0]-off[0])
			b.ReportMetric(on[0]-off[0], strings.ReplaceAll(metric, " ", "-"))
		}
		require.NoError(b, out.save())
	}
	b.ReportMetric(0, "ns/op") // Creating pods takes most of the time.
}

func memoryMetrics() []string { return []string{"live heap MiB", "resident MiB"} }

// nodeMemory is a control plane with both variants, and the address of /debug of the variant that runs.
type nodeMemory struct {
	*rivals
	debug string
}

func newNodeMemory(tb testing.TB) nodeMemory {
	tb.Helper()
	var m nodeMemory
	// Only one replica runs at a time, so both use the same address.
	debuggable := func(additional func(*cluster.Cluster) ([]string, error)) func(*cluster.Cluster) ([]string, error) {
		return func(c *cluster.Cluster) (args []string, err error) {
			if m.debug == "" {
				if m.debug, err = c.ReserveAddress(tb.Context()); err != nil {
					return nil, err
				}
			}
			args, err = additional(c)
			return append(args, "--debug-bind-address="+m.debug), err
		}
	}
	s := withNodePlugins()
	s.args, s.second = debuggable(s.args), debuggable(s.second)
	o := cluster.Options{WithoutScheduler: true, WithoutProvisioner: true, StartTimeout: 5 * time.Minute}
	m.rivals = newRivalsWith(tb, o, cluster.Nodes("node", 1), s, prebind, nodePlugins)
	return m
}

// weighBoth fills the cluster and measures each variant.
func (m nodeMemory) weighBoth(tb testing.TB, out *results, s scale) error {
	ctx, began := tb.Context(), time.Now()
	if err := m.untilAccounts(ctx, agentNamespace); err != nil {
		return err
	}
	if err := m.fill(ctx, s); err != nil {
		return err
	}
	if err := m.addAgents(ctx, s.nodes, large); err != nil {
		return err
	}
	running := s.running[0]
	if err := inParallel(ctx, 32, running, func(ctx context.Context, i int) error {
		return m.createRunning(ctx, runningPod(i, s.nodes))
	}); err != nil {
		return err
	}
	tb.Logf("%d nodes, %d agents and %d running pods after %s", s.nodes, agents*s.nodes, running, time.Since(began).Round(time.Second))
	for i, variant := range []string{prebind, nodePlugins} {
		if err := m.forgetLeases(ctx); err != nil {
			return err
		}
		if err := m.turn(ctx, variant, func(ctx context.Context) error {
			replica := m.prebind.Replicas()[i]
			if err := m.calm(ctx, variant); err != nil {
				return err
			}
			if err := pass(ctx, s.settle); err != nil {
				return err
			}
			resident, err := memory(replica.PID(), "VmRSS")
			if err != nil {
				return err
			}
			live, err := liveHeap(ctx, replica, m.debug)
			out.add(variant, running, "resident MiB", resident/(1<<20))
			out.add(variant, running, "live heap MiB", live/(1<<20))
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}
