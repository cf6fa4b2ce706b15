// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/install"
)

// staleRoute is the time for which the Service still routes to a killed replica. The kubelet, the endpoints
// controller and kube-proxy need that time in a real cluster.
const staleRoute = 2 * time.Second

// losses are the ways to lose the replica that holds all calls.
var losses = []struct {
	name string
	lose func(ctx context.Context, w *world) error
}{
	{name: "kill", lose: func(_ context.Context, w *world) error { return w.killFirst() }},
	{name: "roll", lose: func(ctx context.Context, w *world) error { return w.roll(ctx) }},
}

// BenchmarkLostReplica measures the delay from a claim bound to its pod bound in two cases: the replica that
// holds 60 calls of kube-scheduler is killed, or both replicas restart one after another. No claim is bound
// before that. Afterwards one claim is bound every half second.
func BenchmarkLostReplica(b *testing.B) {
	w := newWorld(b, cluster.Options{}, "--max-holds=60")
	rounds(b, "lost", func(ctx context.Context, out *results, round int) error {
		for _, l := range losses {
			found, err := w.delaysWithLoss(ctx, 60, 500*time.Millisecond, l.lose)
			if err != nil {
				return err
			}
			found.add(out, l.name, round)
		}
		return nil
	})
}

// delaysWithLoss returns the delays of n pods whose calls the first replica holds when it is lost. The
// provisioner is paused until then. Afterwards it provisions one volume per step.
func (w *world) delaysWithLoss(ctx context.Context, n int, step time.Duration, lose func(ctx context.Context, w *world) error) (delayed, error) {
	waits := make([]time.Duration, 0, n)
	for i := range n {
		waits = append(waits, time.Duration(i)*step)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(n)*step+2*patience)
	defer cancel()
	replicas := w.prebind.Replicas()
	w.prebind.RouteTo(replicas[0])
	w.disconnect() // The API server keeps its connections to the others.
	provisioner := w.cluster.Process(cluster.Provisioner)
	if err := provisioner.Signal(syscall.SIGSTOP); err != nil {
		return delayed{}, err
	}
	lost := make(chan error, 1)
	go func() {
		held := replicas[0].UntilHolds(ctx, n)
		w.prebind.RouteTo(replicas...)
		err := errors.Join(held, provisioner.Signal(syscall.SIGCONT))
		if err == nil {
			err = lose(ctx, w)
		}
		lost <- err
	}()
	d, err := w.delays(ctx, cluster.NoPreBindScheduler, waits)
	if err := errors.Join(err, <-lost); err != nil {
		return d, err
	}
	return d, w.restart(ctx)
}

// killFirst kills the first replica. The Service still routes to it for staleRoute.
func (w *world) killFirst() error {
	replicas := w.prebind.Replicas()
	var backends []cluster.Backend
	for _, r := range replicas {
		backends = append(backends, cluster.Backend{Address: r.WebhookAddress(), Ready: cluster.HTTPReady("http://" + r.HealthAddress() + "/readyz")})
	}
	killed := time.Now()
	backends[0].Ready = func(context.Context) bool { return time.Since(killed) < staleRoute }
	w.cluster.Services().Route(install.Namespace, install.Service, install.ServicePort, backends...)
	return replicas[0].Kill()
}

// roll restarts the replicas one after another.
func (w *world) roll(ctx context.Context) error {
	for _, r := range w.prebind.Replicas() {
		if err := r.Restart(ctx); err != nil {
			return err
		}
	}
	return nil
}

// restart starts the first replica again if it was killed.
func (w *world) restart(ctx context.Context) error {
	return w.prebind.Replicas()[0].Restart(ctx)
}
