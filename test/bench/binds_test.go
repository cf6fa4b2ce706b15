// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
)

// CPU time per bind, in microseconds.
const (
	cpuOfWebhook   = "cpu-us/bind"
	cpuOfAPIServer = "apiserver-cpu-us/bind"
)

// size is the number of binds of each variant in a round.
type size struct {
	// warmUp binds are not measured.
	warmUp int
	// alone is bound one at a time, together by a number of clients.
	alone, together, clients int
}

// BenchmarkBinds measures the latency of a bind and the binds per second of 16 clients: without a webhook, with
// Prebind, with a webhook that does nothing, with one that adds a constant annotation, and with one that also caches the
// pending pods. In each round every variant has a turn. Set the number of rounds with -benchtime, such as 10x.
func BenchmarkBinds(b *testing.B) {
	benchmarkBinds(b, "binds", size{warmUp: 200, alone: 600, together: 600, clients: 16}, none, nothing, constant, following, prebind)
}

// BenchmarkCPU measures the CPU time that a bind costs the webhook and the API server, with Prebind and with the constant
// webhooks. CPU time depends less on other programs than latency, so few rounds are enough.
func BenchmarkCPU(b *testing.B) {
	benchmarkBinds(b, "cpu", size{warmUp: 300, alone: 300, together: 1500, clients: 4}, constant, following, prebind)
}

// BenchmarkBurst measures 2,000 binds at once of pods that were created just before.
func BenchmarkBurst(b *testing.B) {
	r := newRivals(b, cluster.Options{WithoutScheduler: true, WithoutProvisioner: true}, cluster.Nodes("node", 6), shipped{}, none, constant, following, prebind)
	takeTurns(b, "burst", r.burst, none, constant, following, prebind)
}

// benchmarkBinds runs rounds of binds, and saves the samples under the name.
func benchmarkBinds(b *testing.B, name string, s size, variants ...string) {
	b.Helper()
	r := newRivals(b, cluster.Options{WithoutScheduler: true, WithoutProvisioner: true}, cluster.Nodes("node", 6), shipped{}, variants...)
	takeTurns(b, name, func(ctx context.Context, out *results, variant string, round int) error {
		return r.round(ctx, out, variant, round, s)
	}, variants...)
}

// takeTurns runs rounds in which each variant has a turn, and saves the samples under the name.
func takeTurns(b *testing.B, name string, turn func(ctx context.Context, out *results, variant string, round int) error, variants ...string) {
	b.Helper()
	rounds(b, name, func(ctx context.Context, out *results, round int) error {
		for i := range variants {
			if err := turn(ctx, out, variants[(i+round)%len(variants)], round); err != nil { // A different variant begins each round.
				return err
			}
		}
		return nil
	})
}

// rounds runs the rounds of a benchmark, and saves the samples under the name.
func rounds(b *testing.B, name string, measure func(ctx context.Context, out *results, round int) error) {
	b.Helper()
	out, round := &results{name: name}, 0
	for b.Loop() {
		require.NoError(b, measure(b.Context(), out, round))
		round++
	}
	require.NoError(b, out.save())
}

// burst measures a burst of binds of one variant.
func (r *rivals) burst(ctx context.Context, out *results, variant string, round int) error {
	return r.turn(ctx, variant, func(ctx context.Context) error {
		warm, err := r.create(ctx, variant, fmt.Sprintf("warm-%d", round), 200)
		if err != nil {
			return err
		}
		if _, err := r.bindAll(ctx, 16, warm); err != nil {
			return err
		}
		if err := r.calm(ctx, variant); err != nil {
			return err
		}
		pods, err := r.create(ctx, variant, fmt.Sprintf("burst-%d", round), 2000)
		if err != nil {
			return err
		}
		var spent used
		began := time.Now()
		if _, err := r.spend(&spent, variant, func() ([]time.Duration, error) {
			a := r.arrive(ctx, pods, math.Inf(1))
			a.add(out, variant, round)
			return nil, nil
		}); err != nil {
			return err
		}
		out.add(variant, round, "binds/s", float64(len(pods))/time.Since(began).Seconds())
		out.add(variant, round, cpuOfWebhook, spent.own*1e6/float64(len(pods)))
		out.add(variant, round, cpuOfAPIServer, spent.apiServer*1e6/float64(len(pods)))
		return r.clear(ctx, variant)
	})
}

// round measures one variant once.
func (r *rivals) round(ctx context.Context, out *results, variant string, round int, s size) error {
	return r.turn(ctx, variant, func(ctx context.Context) error {
		pods, err := r.create(ctx, variant, fmt.Sprintf("round-%d", round), s.warmUp+s.alone+s.together)
		if err != nil {
			return err
		}
		if _, err := r.bindAll(ctx, s.clients, pods[:s.warmUp]); err != nil {
			return err
		}
		pods = pods[s.warmUp:]
		if err := r.calm(ctx, variant); err != nil {
			return err
		}
		before, err := r.requests(ctx)
		if err != nil {
			return err
		}
		var spent used
		took, err := r.spend(&spent, variant, func() ([]time.Duration, error) { return r.bindAll(ctx, 1, pods[:s.alone]) })
		if err != nil {
			return err
		}
		out.add(variant, round, "p50", quantile(took, 0.5))
		out.add(variant, round, "p99", quantile(took, 0.99))
		if err := r.calm(ctx, variant); err != nil {
			return err
		}
		began := time.Now()
		if _, err := r.spend(&spent, variant, func() ([]time.Duration, error) { return r.bindAll(ctx, s.clients, pods[s.alone:]) }); err != nil {
			return err
		}
		out.add(variant, round, "binds/s", float64(s.together)/time.Since(began).Seconds())
		if err := r.calm(ctx, variant); err != nil { // Requests after the binds also count.
			return err
		}
		after, err := r.requests(ctx)
		if err != nil {
			return err
		}
		binds := float64(s.alone + s.together)
		out.add(variant, round, "requests/bind", (after-before)/binds)
		if process := r.processes[variant]; process != nil {
			resident, err := memory(process.PID(), "VmRSS")
			if err != nil {
				return err
			}
			out.add(variant, round, "resident MiB", resident/(1<<20))
		}
		out.add(variant, round, cpuOfWebhook, spent.own*1e6/binds)
		out.add(variant, round, cpuOfAPIServer, spent.apiServer*1e6/binds)
		if err := r.check(ctx, variant, pods[0].Name); err != nil {
			return err
		}
		return r.clear(ctx, variant)
	})
}

// requests returns the number of requests that the API server has answered, except Bindings and reads of its metrics.
func (r *rivals) requests(ctx context.Context) (float64, error) {
	raw, err := r.client.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	const name = "apiserver_request_total"
	return sum(string(raw), name, "") - sum(string(raw), name, `subresource="binding"`) - sum(string(raw), name, `subresource="/metrics"`), err
}

// spend adds the CPU time that the processes use during bind.
func (r *rivals) spend(spent *used, variant string, bind func() ([]time.Duration, error)) ([]time.Duration, error) {
	before, err := r.used(variant)
	if err != nil {
		return nil, err
	}
	took, err := bind()
	if err != nil {
		return nil, err
	}
	after, err := r.used(variant)
	spent.own += after.own - before.own
	spent.apiServer += after.apiServer - before.apiServer
	return took, err
}

// bindAll binds the pods with a number of clients, and returns the duration of each bind.
func (r *rivals) bindAll(ctx context.Context, clients int, pods []*corev1.Pod) ([]time.Duration, error) {
	took := make([]time.Duration, len(pods))
	err := inParallel(ctx, clients, len(pods), func(ctx context.Context, i int) error {
		began := time.Now()
		err := r.client.CoreV1().Pods(pods[i].Namespace).Bind(ctx, bindingOf(pods[i], i%max(r.targets, 3)), metav1.CreateOptions{})
		took[i] = time.Since(began)
		return err
	})
	return took, err
}

// bindingOf returns the Binding to the i-th node that kube-scheduler would post.
func bindingOf(pod *corev1.Pod, i int) *corev1.Binding {
	return gen.Binding(pod, fmt.Sprintf("node-%d", i+1), gen.UID(pod.UID))
}
