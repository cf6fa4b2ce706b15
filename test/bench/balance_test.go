// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/cluster/clustertest"
	"github.com/prebind/prebind/test/install"
)

// BenchmarkBalance counts the binds of each replica while 16 clients bind through three API servers: with three replicas, and after a
// fourth one has been added. Each round begins with new connections.
func BenchmarkBalance(b *testing.B) {
	w := newWorld(b, cluster.Options{WithoutScheduler: true, WithoutProvisioner: true}, "-v=0")
	for range 2 {
		replica, err := w.prebind.Start(b.Context(), "-v=0")
		require.NoError(b, err)
		b.Cleanup(func() { clustertest.Kill(b, replica.Process) })
	}
	clients := w.apiServers(b, 3)
	rounds(b, "balance", func(ctx context.Context, out *results, round int) error {
		w.disconnect()
		for _, replicas := range []int{3, 4} {
			w.routeAtRandom(replicas)
			shares, err := w.shares(ctx, clients, 1600)
			if err != nil {
				return err
			}
			variant := fmt.Sprintf("%d replicas", replicas)
			out.add(variant, round, "busiest %", slices.Max(shares))
			out.add(variant, round, "fourth %", shares[3])
		}
		return nil
	})
}

// routeAtRandom gives each new connection to one of the first n replicas at random, like kube-proxy in mode iptables.
func (w *world) routeAtRandom(n int) {
	backends := make([]cluster.Backend, 1000) // They take turns.
	for i := range backends {
		backends[i] = cluster.Backend{Address: w.prebind.Replicas()[rand.IntN(n)].WebhookAddress()}
	}
	w.cluster.Services().Route(install.Namespace, install.Service, install.ServicePort, backends...)
}

// disconnect closes all connections to replicas.
func (w *world) disconnect() {
	for _, replica := range w.prebind.Replicas() {
		w.cluster.Services().Cut(replica.WebhookAddress())
		w.cluster.Services().Heal(replica.WebhookAddress())
	}
}

// apiServers returns a client for each of n API servers. It starts those that do not run yet.
func (w *world) apiServers(tb testing.TB, n int) []kubernetes.Interface {
	tb.Helper()
	clients := make([]kubernetes.Interface, n)
	for i := range clients {
		config := w.cluster.Config()
		config.ContentType = runtime.ContentTypeProtobuf
		if i > 0 {
			process, url, err := w.cluster.AddAPIServer(tb.Context(), fmt.Sprintf("kube-apiserver-%d", i+1))
			require.NoError(tb, err)
			tb.Cleanup(func() { clustertest.Kill(tb, process) })
			config.Host = url
		}
		var err error
		clients[i], err = kubernetes.NewForConfig(config)
		require.NoError(tb, err)
	}
	return clients
}

// shares binds n pods with 16 workers, which use all API servers, and returns the percentage of the binds of each replica.
func (w *world) shares(ctx context.Context, clients []kubernetes.Interface, n int) ([]float64, error) {
	namespace, err := w.namespace(ctx)
	if err != nil {
		return nil, err
	}
	pods, err := (&rivals{client: w.client}).create(ctx, namespace, "pod", n)
	if err != nil {
		return nil, err
	}
	before, err := w.decisions(ctx)
	if err != nil {
		return nil, err
	}
	if err := inParallel(ctx, 16, n, func(ctx context.Context, i int) error {
		return clients[i%len(clients)].CoreV1().Pods(namespace).Bind(ctx, bindingOf(pods[i], i%worldNodes), metav1.CreateOptions{})
	}); err != nil {
		return nil, err
	}
	shares, err := w.decisions(ctx)
	for i := range shares {
		shares[i] = 100 * (shares[i] - before[i]) / float64(n)
	}
	return shares, err
}

// decisions returns the number of answers of each replica.
func (w *world) decisions(ctx context.Context) ([]float64, error) {
	var counts []float64
	for _, replica := range w.prebind.Replicas() {
		metrics, err := replica.Metrics(ctx)
		if err != nil {
			return nil, err
		}
		counts = append(counts, sum(metrics, "prebind_decisions_total", ""))
	}
	return counts, nil
}
