// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

const (
	// meterInterval is the time between two reference calls.
	meterInterval = 500 * time.Millisecond
	// slowCall is the duration above which a reference call is slow.
	slowCall = time.Second
	// slowShare is the part of a check that slow calls must occupy, so that the cluster counts as overloaded.
	slowShare = 0.1
)

// meter measures the cluster during the checks. It makes reference calls, one after the other. It is safe for concurrent use.
type meter struct {
	// call makes a reference call.
	call func(ctx context.Context) error

	mu    sync.Mutex
	calls []referenceCall
}

// referenceCall is one call of a meter.
type referenceCall struct {
	began time.Time
	// ended is zero while the call is in progress.
	ended  time.Time
	failed bool
}

// run makes reference calls until the context ends.
func (m *meter) run(ctx context.Context) {
	tick := time.NewTicker(meterInterval)
	defer tick.Stop()
	for ctx.Err() == nil {
		m.mu.Lock()
		m.calls = append(m.calls, referenceCall{began: time.Now()})
		m.mu.Unlock()
		calling, cancel := context.WithTimeout(ctx, requestTimeout)
		err := m.call(calling)
		cancel()
		m.mu.Lock()
		last := &m.calls[len(m.calls)-1]
		last.ended, last.failed = time.Now(), err != nil && ctx.Err() == nil
		m.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// overload describes the overload of the cluster in the period, or returns an empty string. A call that fails counts as slow until the
// next one.
func (m *meter) overload(from, to time.Time) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var slow, slowest time.Duration
	for i, c := range m.calls {
		if c.ended.IsZero() {
			c.ended = to
		}
		took := c.ended.Sub(c.began)
		if c.failed {
			c.ended = to
			if i+1 < len(m.calls) {
				c.ended = m.calls[i+1].began
			}
		}
		inside := minTime(c.ended, to).Sub(maxTime(c.began, from))
		if inside <= 0 {
			continue
		}
		slowest = max(slowest, took)
		if c.failed || took > slowCall {
			slow += inside
		}
	}
	if slow == 0 || slow.Seconds() < slowShare*to.Sub(from).Seconds() {
		return ""
	}
	return fmt.Sprintf("the cluster is overloaded: for %s of %s, dry-run Bindings of this command failed or took more than %s (the slowest %s)",
		seconds(slow), seconds(to.Sub(from)), slowCall, seconds(slowest))
}

func minTime(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// measureCluster begins to measure the cluster with dry runs of a bind of the pod. The returned function ends that.
func (s *session) measureCluster(ctx context.Context, pod *corev1.Pod) (stop func(), err error) {
	config := rest.CopyConfig(s.config)
	config.WarningHandler = rest.NoWarnings{}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("setting up a client: %w", err)
	}
	binding := bindingOf(pod, s.nodes[0].Name, nil)
	s.meter = &meter{call: func(ctx context.Context) error {
		return client.CoreV1().Pods(pod.Namespace).Bind(ctx, binding, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	}}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { s.meter.run(ctx) })
	return func() {
		cancel()
		running.Wait()
	}, nil
}
