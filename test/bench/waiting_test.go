// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/prebind/prebind/test/bench/stat"
	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
	"github.com/prebind/prebind/test/install"
)

// crowd describes many pods that wait for slow claims.
type crowd struct {
	pods  int
	delay time.Duration
}

// BenchmarkWaiting measures the effect of many waiting pods on other clients: the concurrency seats of the API
// server that the pods occupy, and the duration of requests of kube-controller-manager, which shares the seats
// and binds the claims. Without Prebind, kube-scheduler waits for the claims itself. Each loop is a round that
// measures both variants once.
func BenchmarkWaiting(b *testing.B) {
	r, out := newWaiting(b, crowd{pods: 1000, delay: 3 * time.Second}), &results{name: "waiting"}
	round := 0
	for b.Loop() {
		for i := range 2 {
			if err := r.wait(b.Context(), out, []string{none, prebind}[(i+round)%2], round, crowd{pods: 1000, delay: 3 * time.Second}); err != nil {
				b.Fatal(err)
			}
		}
		round++
	}
	b.ReportMetric(0, "ns/op") // Provisioning takes most of the time.
	for _, metric := range []string{"other p50", "other p99", "seconds"} {
		out.ratio(b, metric, prebind, none)
	}
	for _, metric := range []string{"holds", "seats p50", "seats", "FailedScheduling"} {
		b.Logf("%s, at most: %g with Prebind, %g without", metric,
			stat.Quantile(stat.Values(out.samples, metric, prebind), 1), stat.Quantile(stat.Values(out.samples, metric, none), 1))
	}
	require.NoError(b, out.save())
}

// newWaiting starts a control plane with a class of slow claims.
func newWaiting(tb testing.TB, c crowd) *rivals {
	tb.Helper()
	r := newRivals(tb, cluster.Options{SchedulerConfig: schedulerWith(unlimited)}, cluster.Nodes("node", 50), none, prebind)
	class := gen.StorageClass("slow", cluster.ProvisionerName, gen.Parameter("delay", c.delay.String()))
	_, err := r.client.StorageV1().StorageClasses().Create(tb.Context(), class, metav1.CreateOptions{})
	require.NoError(tb, err)
	return r
}

// wait binds a crowd and observes the API server during the binds.
func (r *rivals) wait(ctx context.Context, out *results, variant string, round int, c crowd) error {
	return r.turn(ctx, variant, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeoutCause(ctx, 2*patience, fmt.Errorf("the pods of %s are not bound", variant))
		defer cancel()
		core := r.client.CoreV1()
		scheduler := cluster.DefaultScheduler
		if variant == prebind {
			scheduler = cluster.NoPreBindScheduler
		}
		if err := errors.Join(r.createClaims(ctx, variant, round, c), r.calm(ctx, variant)); err != nil {
			return err
		}
		watching, stop := context.WithCancel(ctx)
		defer stop()
		look := r.observer(variant).look(watching)
		began := time.Now()
		if _, err := r.firstToLast(ctx, variant, c.pods, func() error { return r.createCrowd(ctx, variant, scheduler, round, c) }); err != nil {
			return err
		}
		out.add(variant, round, "seconds", time.Since(began).Seconds())
		stop()
		found := <-look
		found.add(out, variant, round)
		failed, err := core.Events(variant).List(ctx, metav1.ListOptions{FieldSelector: "reason=FailedScheduling"})
		if err != nil {
			return err
		}
		out.add(variant, round, "FailedScheduling", float64(len(failed.Items)))
		return errors.Join(found.err, r.clearClaims(ctx, variant))
	})
}

// nameInCrowd returns the name of the n-th pod and of its claim.
func nameInCrowd(round, n int) string { return prefixInCrowd(round) + strconv.Itoa(n) }

// prefixInCrowd returns the prefix of the names of a round.
func prefixInCrowd(round int) string { return fmt.Sprintf("round-%d-", round) }

// createClaims creates the claims of a crowd. Create all claims before any pod, because a scheduler that does
// not see a pod's claim yet reports a failure.
func (r *rivals) createClaims(ctx context.Context, variant string, round int, c crowd) error {
	return inParallel(ctx, 16, c.pods, func(ctx context.Context, i int) error {
		claim := gen.Claim(nameInCrowd(round, i), gen.InNamespace(variant), gen.OfClass("slow"))
		_, err := r.client.CoreV1().PersistentVolumeClaims(variant).Create(ctx, claim, metav1.CreateOptions{})
		return err
	})
}

// createCrowd creates the pods of a crowd.
func (r *rivals) createCrowd(ctx context.Context, variant, scheduler string, round int, c crowd) error {
	return inParallel(ctx, 16, c.pods, func(ctx context.Context, i int) error {
		name := nameInCrowd(round, i)
		pod := gen.Pod(name, gen.InNamespace(variant), gen.EndsAtOnce(), gen.Scheduler(scheduler), gen.UsesClaim(name))
		_, err := r.client.CoreV1().Pods(variant).Create(ctx, pod, metav1.CreateOptions{})
		return err
	})
}

// clearClaims deletes the pods, their claims with the volumes, and the events.
func (r *rivals) clearClaims(ctx context.Context, variant string) error {
	core := r.client.CoreV1()
	return errors.Join(
		r.clear(ctx, variant),
		core.PersistentVolumeClaims(variant).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}),
		core.Events(variant).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}),
	)
}

// found contains the observations of the API server.
type found struct {
	// others contains the durations of the requests of kube-controller-manager.
	others []time.Duration
	// seats contains the numbers of seats that kube-scheduler's requests occupied, without samples of 0. The
	// requests are held calls and other requests in progress.
	seats []float64
	// holds is the maximum number of held calls.
	holds float64
	// apiServer and own are the CPU times of kube-apiserver and Prebind, in seconds.
	apiServer, own float64
	err            error
}

// add adds the samples of a round.
func (f found) add(out *results, variant string, round int) {
	out.add(variant, round, "other p50", milliseconds(quantile(f.others, 0.5)))
	out.add(variant, round, "other p99", milliseconds(quantile(f.others, 0.99)))
	out.add(variant, round, "seats p50", stat.Median(f.seats))
	out.add(variant, round, "seats", stat.Quantile(f.seats, 1))
	out.add(variant, round, "holds", f.holds)
	out.add(variant, round, "apiserver-cpu-s", f.apiServer)
	out.add(variant, round, "cpu-s", f.own)
}

// observer observes an API server that a crowd uses.
type observer struct {
	cluster *cluster.Cluster
	client  kubernetes.Interface
	// replicas contains the replicas of Prebind. It is empty if Prebind is off.
	replicas []*install.Replica
}

func (r *rivals) observer(variant string) observer {
	o := observer{cluster: r.cluster, client: r.client}
	if variant == prebind {
		o.replicas = r.prebind.Replicas()
	}
	return o
}

// used returns the CPU times of kube-apiserver and Prebind.
func (o observer) used() (used, error) {
	var u used
	var err error
	for _, replica := range o.replicas {
		own, err := processor(replica.PID())
		if err != nil {
			return u, err
		}
		u.own += own
	}
	u.apiServer, err = processor(o.cluster.Process(cluster.APIServer).PID())
	return u, err
}

// look observes the API server until the context ends. It then sends one result.
func (o observer) look(ctx context.Context) <-chan found {
	told := make(chan found, 1)
	go func() {
		before, err := o.used()
		if err != nil {
			told <- found{err: err}
			return
		}
		f, err := o.lookUntilDone(ctx)
		if err == nil {
			var after used
			after, err = o.used()
			f.apiServer, f.own = after.apiServer-before.apiServer, after.own-before.own
		}
		f.err = err
		told <- f
	}()
	return told
}

func (o observer) lookUntilDone(ctx context.Context) (found, error) {
	var f found
	// This user shares the seats of kube-controller-manager and may list all objects.
	config, err := o.cluster.UserConfig("system:kube-controller-manager")
	if err != nil {
		return f, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return f, err
	}
	const every, scrapeEvery = 20 * time.Millisecond, 25
	tick := time.NewTicker(every)
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return f, nil
		case <-tick.C:
		}
		began := time.Now()
		_, err := client.CoreV1().ConfigMaps(corev1.NamespaceDefault).List(ctx, metav1.ListOptions{Limit: 1})
		took := time.Since(began)
		if err == nil {
			f.others = append(f.others, took)
		}
		if err == nil && i%scrapeEvery == 0 {
			err = o.scrape(ctx, &f)
		}
		if err != nil && ctx.Err() == nil {
			return f, err
		}
	}
}

// scrape reads the metrics of the API server and of Prebind.
func (o observer) scrape(ctx context.Context, f *found) error {
	raw, err := o.client.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return err
	}
	if seats := sum(string(raw), "apiserver_flowcontrol_current_executing_seats", `flow_schema="kube-scheduler"`); seats > 0 {
		f.seats = append(f.seats, seats)
	}
	holds := 0.0
	for _, replica := range o.replicas {
		own, err := replica.Metrics(ctx)
		if err != nil {
			return err
		}
		holds = max(holds, sum(own, "prebind_holds", ""))
	}
	f.holds = max(f.holds, holds)
	return nil
}

// sum returns the sum of the series of a metric that have the label.
func sum(metrics, name, label string) float64 {
	total := 0.0
	lines := bufio.NewScanner(strings.NewReader(metrics))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		series, labels, _ := strings.Cut(slices.Concat(fields, []string{""})[0], "{")
		if series != name || !strings.Contains(labels, label) {
			continue
		}
		if value, err := strconv.ParseFloat(fields[len(fields)-1], 64); err == nil {
			total += value
		}
	}
	return total
}
