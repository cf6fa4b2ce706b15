// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package tasks

import (
	"github.com/prometheus/client_golang/prometheus"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/policy/v1alpha1"
)

// Metrics of tasks. They are safe for concurrent use.
type Metrics struct {
	tasks    *prometheus.GaugeVec
	duration *prometheus.HistogramVec
}

// NewMetrics returns the metrics without values.
func NewMetrics() *Metrics {
	return &Metrics{
		tasks: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "prebind_policy_tasks",
			Help: "BindTasks in the cluster by handler and state: waiting, ready, failed, unneeded if the pod was bound without it, or undoing if the BindTask is deleted and its handler has not removed its finalizer. All replicas report the same.",
		}, []string{"handler", "state"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "prebind_policy_task_duration_seconds",
			Help:    "Time from the creation of a BindTask to the decision on its bind, by handler and result: ready, failed or waiting. Creation has a precision of one second.",
			Buckets: []float64{1, 2, 5, 10, 30, 60, 120, 300, 600},
		}, []string{"handler", "result"}),
	}
}

// Collectors returns the metrics for Registration.Metrics.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.tasks, m.duration}
}

// Handler counts the BindTasks of the cache.
func (m *Metrics) Handler() toolscache.ResourceEventHandler {
	add := func(o any, n float64) {
		if t, ok := o.(*v1alpha1.BindTask); ok {
			m.tasks.WithLabelValues(t.Spec.Handler, stateOf(t)).Add(n)
			for _, result := range []string{"ready", "failed"} {
				m.duration.WithLabelValues(t.Spec.Handler, result) // rate() of Prometheus does not count the first value of a series.
			}
		}
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { add(o, 1) },
		UpdateFunc: func(before, after any) { add(before, -1); add(after, 1) },
		DeleteFunc: func(o any) { add(o, -1) },
	}
}

// Observe records the tasks of a bind that is decided.
func (m *Metrics) Observe(bc *framework.BindContext, asked []Asked) {
	for _, a := range asked {
		if a.Found != nil && a.Found.DeletionTimestamp == nil {
			m.duration.WithLabelValues(a.Handler, stateOf(a.Found)).Observe(max(0, bc.Now.Sub(a.Found.CreationTimestamp.Time).Seconds()))
		}
	}
}

// stateOf returns the state of a BindTask by itself.
func stateOf(t *v1alpha1.BindTask) string {
	switch {
	case t.DeletionTimestamp != nil:
		return "undoing"
	case t.IsTrue(v1alpha1.TaskFailed):
		return "failed"
	case t.IsTrue(v1alpha1.TaskReady):
		return "ready"
	case len(t.Spec.Attempts) == 0:
		return "unneeded"
	default:
		return "waiting"
	}
}
