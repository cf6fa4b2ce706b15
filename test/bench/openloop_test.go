// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prebind/prebind/policy/v1alpha1"
	"github.com/prebind/prebind/test/bench/stat"
	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
)

const (
	// slowest is the p99 at the highest rate of binds that a variant keeps up with.
	slowest = 100 * time.Millisecond
	// fine is the ratio of two rates that are next to each other in the search.
	fine = 1.06
	// openFor is the length of a measurement of one rate, and disturbedFor that of a measurement with a disturbance.
	openFor, disturbedFor = 5 * time.Second, 20 * time.Second
	// undisturbedFor is the time until the disturbance.
	undisturbedFor = 2 * time.Second
)

// BenchmarkOpenLoop finds the highest rate of arriving binds at which the p99 stays below 100 ms: without a webhook, with the constant
// webhook and with Prebind. At half of Prebind's rate, it measures p99 and errors of two replicas without a disturbance, while a tenth
// of the binds waits 5 s, when one of two replicas is killed, and during a rolling restart.
func BenchmarkOpenLoop(b *testing.B) {
	out, half := &results{name: "openloop"}, 0.0
	b.Run("rate", func(b *testing.B) {
		p, round := newPolicyBench(b, 3), 0
		for b.Loop() {
			require.NoError(b, p.searchRates(b.Context(), out, round, none, constant, prebind))
			half = stat.Median(stat.Values(out.samples, "rate", prebind)) / 2
			require.NoError(b, p.offerWithWaits(b.Context(), out, round, half))
			round++
		}
	})
	b.Run("loss", func(b *testing.B) {
		w, round := newWorld(b, cluster.Options{WithoutScheduler: true, WithoutProvisioner: true}, "-v=0"), 0
		require.Positive(b, half, "run it after the search of the rates")
		for b.Loop() {
			require.NoError(b, w.offer(b.Context(), out, "steady", round, half, func(context.Context, *world) error { return nil }))
			for _, l := range losses {
				require.NoError(b, w.offer(b.Context(), out, l.name, round, half, l.lose))
			}
			round++
		}
	})
	require.NoError(b, out.save())
}

// search is the search for the highest rate of a variant.
type search struct {
	// rate is the next one to try.
	rate float64
	// passed is the highest rate that the variant has kept up with, and failed the lowest other one. They are 0 at first.
	passed, failed float64
}

// done reports whether the rates are next to each other.
func (s *search) done() bool { return s.passed > 0 && s.failed > 0 && s.failed/s.passed <= fine }

// add adds the result for the rate, and chooses the next one.
func (s *search) add(ok bool) {
	const coarse = 1.5
	if ok {
		s.passed = s.rate
	} else {
		s.failed = s.rate
	}
	switch {
	case s.failed == 0:
		s.rate *= coarse
	case s.passed == 0:
		s.rate /= coarse
	default:
		s.rate = math.Sqrt(s.passed * s.failed)
	}
}

func TestSearch(t *testing.T) {
	for _, highest := range []float64{100, 400, 700, 3000} {
		s, tried := search{rate: 700}, 0
		for ; !s.done(); tried++ {
			s.add(s.rate <= highest)
		}
		assert.LessOrEqual(t, s.passed, highest)
		assert.Greater(t, s.failed, highest)
		assert.Less(t, tried, 10)
	}
}

// searchRates finds the highest rate of each variant by bisection. The variants take turns in each step.
func (r *rivals) searchRates(ctx context.Context, out *results, round int, variants ...string) error {
	searches := make([]search, len(variants))
	for i, variant := range variants {
		found := &results{}
		if err := r.round(ctx, found, variant, round, size{warmUp: 200, alone: 10, together: 1000, clients: 16}); err != nil {
			return err
		}
		searches[i].rate = 0.75 * stat.Median(stat.Values(found.samples, "binds/s", variant))
	}
	for searching := true; searching; {
		searching = false
		for i, variant := range variants {
			s := &searches[i]
			if s.done() {
				continue
			}
			searching = true
			ok, err := r.keepsUp(ctx, variant, s.rate)
			if err != nil {
				return err
			}
			s.add(ok)
		}
	}
	for i, variant := range variants {
		out.add(variant, round, "rate", searches[i].passed)
	}
	return nil
}

// keepsUp reports whether the variant keeps up with the rate in one of two attempts, so that an interruption by another process does
// not count.
func (r *rivals) keepsUp(ctx context.Context, variant string, rate float64) (ok bool, err error) {
	err = r.turn(ctx, variant, func(ctx context.Context) error {
		for range 2 {
			warm, err := r.create(ctx, variant, "warm", 200)
			if err != nil {
				return err
			}
			if _, err := r.bindAll(ctx, 16, warm); err != nil {
				return err
			}
			pods, err := r.create(ctx, variant, "open", int(rate*openFor.Seconds()))
			if err != nil {
				return err
			}
			if err := r.calm(ctx, variant); err != nil {
				return err
			}
			found := r.arrive(ctx, pods, rate)
			ok = found.p99() < slowest && len(found.failed) == 0
			if err := r.clear(ctx, variant); err != nil || ok {
				return err
			}
		}
		return nil
	})
	return ok, err
}

// arrived is the result of binds that arrive at a fixed rate.
type arrived struct {
	// took contains the time from the scheduled time of each bind to its answer.
	took   []time.Duration
	failed []error
}

// p99 returns the 99th percentile of the binds that have not failed.
func (a arrived) p99() time.Duration {
	return time.Duration(quantile(a.took, 0.99) * float64(time.Millisecond))
}

// add adds p99 and the share of failed binds.
func (a arrived) add(out *results, variant string, round int) {
	out.add(variant, round, "p99", quantile(a.took, 0.99))
	out.add(variant, round, "errors %", 100*float64(len(a.failed))/float64(len(a.took)+len(a.failed)))
}

// arrive binds the pods at the rate, whether or not earlier binds are answered. Delays of this process, which runs on the same
// processors, are part of the latencies.
func (r *rivals) arrive(ctx context.Context, pods []*corev1.Pod, rate float64) arrived {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var a arrived
	var mu sync.Mutex
	var binds sync.WaitGroup
	began := time.Now()
	for i, pod := range pods {
		due := began.Add(time.Duration(float64(i) / rate * float64(time.Second)))
		_ = cluster.Pause(ctx, time.Until(due)) // All binds fail when the context ends.
		binds.Go(func() {
			err := r.client.CoreV1().Pods(pod.Namespace).Bind(ctx, bindingOf(pod, i%3), metav1.CreateOptions{})
			took := time.Since(due)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				a.failed = append(a.failed, err)
			} else {
				a.took = append(a.took, took)
			}
		})
	}
	binds.Wait()
	return a
}

// offerWithWaits measures binds at the rate, of which a tenth waits 5 s for an object that a BindPolicy reads. It measures the latency of
// the others, and the errors of all.
func (p *policyBench) offerWithWaits(ctx context.Context, out *results, round int, rate float64) error {
	const between = 500 * time.Millisecond
	waits, err := policyOf("waits", `
matchConstraints: {podSelector: {matchExpressions: [{key: gate, operator: Exists}]}}
resources: [{name: gate, apiVersion: storage.k8s.io/v1, kind: CSINode, nameExpression: "pod.metadata.labels['gate']"}]
waitFor: [{name: open, expression: "resources.gate != null", message: closed}]
`)
	if err != nil {
		return err
	}
	if err := p.forgetLeases(ctx); err != nil {
		return err
	}
	return p.with(ctx, []*v1alpha1.BindPolicy{waits}, func(ctx context.Context) error {
		others, err := p.create(ctx, policies, "open", int(0.9*rate*disturbedFor.Seconds()))
		if err != nil {
			return err
		}
		var waiting []*corev1.Pod
		var gates []string
		for i := range int(disturbedFor / between) {
			gate := fmt.Sprintf("gate-%d-%d", round, i)
			pods, err := p.create(ctx, policies, gate, int(0.1*rate*between.Seconds()), gen.Label("gate", gate))
			if err != nil {
				return err
			}
			waiting, gates = append(waiting, pods...), append(gates, gate)
		}
		if err := p.calm(ctx, policies); err != nil {
			return err
		}
		var found, late arrived
		var group errgroup.Group
		group.Go(func() error { found = p.arrive(ctx, others, 0.9*rate); return nil })
		group.Go(func() error { late = p.arrive(ctx, waiting, 0.1*rate); return nil })
		group.Go(func() error {
			err := cluster.Pause(ctx, 5*time.Second)
			for _, gate := range gates {
				_, created := p.client.StorageV1().CSINodes().Create(ctx, &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: gate}}, metav1.CreateOptions{})
				err = errors.Join(err, created, cluster.Pause(ctx, between))
			}
			return err
		})
		if err := group.Wait(); err != nil {
			return err
		}
		if waited := quantile(late.took, 0.5); waited < 4000 {
			return fmt.Errorf("binds waited only %.0f ms", waited)
		}
		found.failed = append(found.failed, late.failed...)
		out.add("waits", round, "p99", quantile(found.took, 0.99))
		out.add("waits", round, "errors %", 100*float64(len(found.failed))/float64(len(others)+len(waiting)))
		for _, gate := range gates {
			err = errors.Join(err, p.client.StorageV1().CSINodes().Delete(ctx, gate, metav1.DeleteOptions{}))
		}
		return errors.Join(err, p.clear(ctx, policies))
	})
}

// offer measures binds at the rate, and disturbs both replicas.
func (w *world) offer(ctx context.Context, out *results, name string, round int, rate float64, disturb func(context.Context, *world) error) error {
	w.prebind.RouteTo(w.prebind.Replicas()...)
	ns, err := w.namespace(ctx)
	if err != nil {
		return err
	}
	r := &rivals{cluster: w.cluster, client: w.client}
	if err := cluster.WaitForPods(ctx, w.client, ns); err != nil {
		return err
	}
	pods, err := r.create(ctx, ns, "open", int(rate*disturbedFor.Seconds()))
	if err != nil {
		return err
	}
	if err := r.calm(ctx, ns); err != nil {
		return err
	}
	disturbed := make(chan error, 1)
	go func() { disturbed <- errors.Join(cluster.Pause(ctx, undisturbedFor), disturb(ctx, w)) }()
	r.arrive(ctx, pods, rate).add(out, name, round)
	if len(disturbed) == 0 {
		return fmt.Errorf("%s takes longer than the binds", name)
	}
	return errors.Join(<-disturbed, r.clear(ctx, ns), w.restart(ctx))
}
