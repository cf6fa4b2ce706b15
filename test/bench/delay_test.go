// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/prebind/prebind/test/bench/stat"
	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
)

// spread returns n evenly spread waits. The waits do not coincide with each other or with timers of Prebind or kube-scheduler.
func spread(n int, shortest, longest time.Duration) []time.Duration {
	waits := make([]time.Duration, 0, n)
	for i := range n {
		waits = append(waits, shortest+(longest-shortest)*time.Duration(i)/time.Duration(n-1)+time.Duration(i*i*37%1000)*time.Millisecond)
	}
	return waits
}

// delayed contains the measurements of one batch of pods.
type delayed struct {
	// seconds are the delays from claim bound to pod bound.
	seconds []float64
	// repeats is the number of Bindings that the API server answered with 429.
	repeats float64
	// failed is the number of FailedScheduling events.
	failed float64
}

// delays binds one pod per wait, all at the same time and in a new namespace. It returns the delay from each
// claim bound to its pod bound, and deletes the pods and claims at the end.
func (w *world) delays(ctx context.Context, scheduler string, waits []time.Duration) (delayed, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, slices.Max(waits)+2*patience, fmt.Errorf("the pods of %s are not bound", scheduler))
	defer cancel()
	var d delayed
	core := w.client.CoreV1()
	namespace, err := w.namespace(ctx)
	if err != nil {
		return d, err
	}
	for _, wait := range slices.Compact(slices.Sorted(slices.Values(waits))) {
		class := gen.StorageClass(classOf(wait), cluster.ProvisionerName, gen.Parameter("delay", wait.String()))
		if _, err := w.client.StorageV1().StorageClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return d, err
		}
	}
	// Create the claims first. A scheduler that does not see a pod's claim yet reports a failure.
	err = inParallel(ctx, 16, len(waits), func(ctx context.Context, i int) error {
		claim := gen.Claim(strconv.Itoa(i), gen.InNamespace(namespace), gen.OfClass(classOf(waits[i])))
		_, err := core.PersistentVolumeClaims(namespace).Create(ctx, claim, metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return d, err
	}
	// Watch as informers do, because the API server ends a plain watch whose client is slow.
	watched := func(resource string, of runtime.Object) watch.Interface {
		_, _, w, _ := watchtools.NewIndexerInformerWatcher(cache.NewListWatchFromClient(core.RESTClient(), resource, namespace, fields.Everything()), of)
		return w
	}
	claims, pods := watched("persistentvolumeclaims", &corev1.PersistentVolumeClaim{}), watched("pods", &corev1.Pod{})
	defer claims.Stop()
	defer pods.Stop()
	before, err := w.refused(ctx)
	if err != nil {
		return d, err
	}
	created := make(chan error, 1)
	go func() {
		created <- inParallel(ctx, 16, len(waits), func(ctx context.Context, i int) error {
			name := strconv.Itoa(i)
			pod := gen.Pod(name, gen.InNamespace(namespace), gen.EndsAtOnce(), gen.Scheduler(scheduler), gen.UsesClaim(name))
			_, err := core.Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
			return err
		})
	}()
	took, err := follow(ctx, len(waits), claims.ResultChan(), pods.ResultChan())
	if err != nil {
		return d, err
	}
	if err := <-created; err != nil {
		return d, err
	}
	for _, t := range took {
		d.seconds = append(d.seconds, t.Seconds())
	}
	after, err := w.refused(ctx)
	if err != nil {
		return d, err
	}
	d.repeats = after - before
	failed, err := core.Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "reason=FailedScheduling"})
	if err != nil {
		return d, err
	}
	d.failed = float64(len(failed.Items))
	return d, errors.Join(
		core.Pods(namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}),
		core.PersistentVolumeClaims(namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}),
	)
}

// namespace creates a namespace for the pods of one scheduler.
func (w *world) namespace(ctx context.Context) (string, error) {
	ns, err := w.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "delay-"}}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return ns.Name, nil
}

func classOf(wait time.Duration) string { return fmt.Sprintf("wait-%d", wait.Milliseconds()) }

// refused returns the number of Bindings that the API server has answered with 429.
func (w *world) refused(ctx context.Context) (float64, error) {
	raw, err := w.client.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return 0, err
	}
	return sum(string(raw), "apiserver_request_total", `code="429",component="apiserver",dry_run="",group="",resource="pods",scope="resource",subresource="binding"`), nil
}

// add adds the samples of a batch.
func (d delayed) add(out *results, way string, round int) {
	out.add(way, round, "mean", stat.Mean(d.seconds))
	out.add(way, round, "p50", stat.Median(d.seconds))
	out.add(way, round, "p90", stat.Quantile(d.seconds, 0.9))
	out.add(way, round, "worst", stat.Quantile(d.seconds, 1))
	out.add(way, round, "repeats", d.repeats)
	out.add(way, round, "FailedScheduling", d.failed)
}

// BenchmarkDelay measures the delay from a claim bound to its pod bound for 30 pods that are created at the
// same time. Their waits are spread from 2 s to 4 min. The baseline is kube-scheduler's own VolumeBinding.
// Every pod has a seat, so the result also applies to a single pod. Both ways run at the same time, because
// they only wait.
func BenchmarkDelay(b *testing.B) {
	w := newWorld(b, cluster.Options{})
	rounds(b, "delay", func(ctx context.Context, out *results, round int) error {
		found := make([]delayed, len(ways))
		err := inParallel(ctx, len(ways), len(ways), func(ctx context.Context, i int) (err error) {
			found[i], err = w.delays(ctx, ways[i].scheduler, spread(30, 2*time.Second, 4*time.Minute))
			return err
		})
		if err != nil {
			return err
		}
		for i, way := range ways {
			found[i].add(out, way.name, round)
		}
		return nil
	})
}

// batch is the number of claims that are provisioned at the same time. It is small enough not to keep two processors busy.
const batch = 10

// BenchmarkClaimBoundToPodBound measures the delay from a claim bound to its pod bound, for claims that are provisioned in one
// to two seconds. kube-scheduler polls once a second, so the claims of a batch are bound at different times after a poll. Both
// times are those of a client's watch. Set the number of batches of ten claims with -benchtime, such as 5x.
func BenchmarkClaimBoundToPodBound(b *testing.B) {
	w := newWorld(b, cluster.Options{})
	rounds(b, "claims", func(ctx context.Context, out *results, round int) error {
		for _, way := range ways {
			found, err := w.delays(ctx, way.scheduler, spread(batch, time.Second, 2*time.Second))
			if err != nil {
				return err
			}
			for i, seconds := range found.seconds {
				out.add(way.name, round*batch+i, "ms", seconds*1000)
			}
		}
		return nil
	})
}

// quantile returns the quantile of the durations in milliseconds. See [stat.Quantile].
func quantile(durations []time.Duration, q float64) float64 {
	var milliseconds []float64
	for _, d := range durations {
		milliseconds = append(milliseconds, float64(d)/float64(time.Millisecond))
	}
	return stat.Quantile(milliseconds, q)
}
