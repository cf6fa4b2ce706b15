// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/prebind/prebind/test/bench/stat"
	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/install"
)

// found contains the observations of the API server.
type found struct {
	// others contains the durations of the requests of kube-controller-manager.
	others []time.Duration
	// seats contains the numbers of seats that kube-scheduler's requests occupied, without samples of 0. The
	// requests are held calls and other requests in progress.
	seats []float64
	// holds is the maximum number of held calls.
	holds float64
	err   error
}

// add adds the samples of a round.
func (f found) add(out *results, variant string, round int) {
	out.add(variant, round, "other p99", quantile(f.others, 0.99))
	out.add(variant, round, "seats p50", stat.Median(f.seats))
	out.add(variant, round, "seats", stat.Quantile(f.seats, 1))
	out.add(variant, round, "holds", f.holds)
}

// observer observes an API server that a crowd uses.
type observer struct {
	cluster *cluster.Cluster
	client  kubernetes.Interface
	// replicas contains the replicas of Prebind. It is empty if Prebind is off.
	replicas []*install.Replica
}

// look observes the API server until the context ends. It then sends one result.
func (o observer) look(ctx context.Context) <-chan found {
	told := make(chan found, 1)
	go func() {
		f, err := o.lookUntilDone(ctx)
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
	total, _ := install.Sum(metrics, name, label)
	return total
}
