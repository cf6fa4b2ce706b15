// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package telemetry

import (
	"context"
	"errors"
	"maps"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/mutation"
)

// answering is an engine that returns the decision after a second.
type answering struct {
	decision binder.Decision
	clock    *clocktesting.FakePassiveClock
}

// Bind implements webhook.Engine.
func (a answering) Bind(context.Context, binder.Request) binder.Decision {
	a.clock.SetTime(a.clock.Now().Add(time.Second))
	return a.decision
}

func TestRecorder_Decided(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	registry := prometheus.NewRegistry()
	refusal := framework.Refuse(framework.Object{Kind: "Pod", Namespace: "shop", Name: "web-7f"}, "no")
	refusal.Plugin = "volumebinding"
	decisions := []binder.Decision{
		{
			Conflicts: []mutation.Conflict{{Mutator: "topology", Field: "annotation", Key: "web-7f", Source: "pod"}, {Mutator: "topology", Key: "shop", Source: "Binding", Kept: true}},
			Failures:  []mutation.Failure{{Mutator: "node-info", Err: refusal}},
		},
		{PassThrough: true},
		{Err: refusal, Attempt: "shop", Calls: 1, Waited: time.Hour},
		{Err: refusal, Warnings: []string{"node-a"}},
		{Err: refusal, RetryAfter: time.Second, Calls: 2, Waited: time.Minute},
		{Attempt: "web-7f", Calls: 3, Waited: 90 * time.Second},
	}
	m, err := New(Options{Registry: registry, Clock: clock})
	require.NoError(t, err)
	for _, d := range decisions {
		m.Engine(answering{d, clock}).Bind(t.Context(), binder.Request{})
	}

	families, err := registry.Gather()
	require.NoError(t, err)
	counts, times, mutated := map[string]float64{}, map[string]float64{}, map[string]float64{}
	for _, family := range families {
		assert.Contains(t, family.GetName(), "prebind_")
		assert.NotEmpty(t, family.GetHelp())
		for _, metric := range family.GetMetric() {
			labels := map[string]string{}
			for _, l := range metric.GetLabel() {
				assert.Contains(t, []string{"decision", "plugin", "mutator", "source", "result", "phase", "version", "goversion", "hash", "reason"}, l.GetName(), "labels do not contain pods, nodes or namespaces")
				assert.NotContains(t, []string{"web-7f", "shop", "node-a"}, l.GetValue(), "values of labels do not contain pods, nodes or namespaces")
				labels[l.GetName()] = l.GetValue()
			}
			switch family.GetName() {
			case "prebind_decisions_total":
				counts[labels["decision"]+"/"+labels["plugin"]] = metric.GetCounter().GetValue()
			case "prebind_mutator_conflicts_total", "prebind_mutator_failures_total":
				mutated[labels["mutator"]+"/"+labels["source"]+"/"+labels["result"]] = metric.GetCounter().GetValue()
			case "prebind_decision_duration_seconds":
				times[labels["decision"]] = metric.GetHistogram().GetSampleSum()
			}
		}
	}
	assert.Equal(t, map[string]float64{"allowed/": 2, "passed-through/": 1, "refused/volumebinding": 3}, counts)
	assert.InDelta(t, 3690, gathered(t, registry)["prebind_bind_wait_seconds"], 0.001, "the metric includes binds that were allowed or rejected after a wait, once")
	assert.Equal(t, map[string]float64{"allowed": 2, "passed-through": 1, "refused": 3}, times, "the unit is seconds")
	assert.Equal(t, map[string]float64{"topology/pod/replaced": 1, "topology/Binding/kept": 1, "node-info//": 1}, mutated)

	_, err = New(Options{Registry: prometheus.NewRegistry(), Clock: clock, Metrics: []prometheus.Collector{m.decisions}})
	assert.Error(t, err, "a metric of a plugin with the name of another one is an error, not a panic")
}

func TestRecorder_Attempts(t *testing.T) {
	registry := prometheus.NewRegistry()
	o, err := New(Options{Registry: registry, Clock: clocktesting.NewFakePassiveClock(time.Time{}), Plugins: []string{"device", "volumebinding"}})
	require.NoError(t, err)
	stats := binder.Stats{Attempts: map[string]int{"preparing": 2, "failed": 0}, Holds: 3, MaxHolds: 32}
	o.Show(func() binder.Stats { return stats }, func() error { return nil })
	o.AttemptEnded("bound")
	o.AttemptEnded("bound")
	o.RolledBack("device", nil)
	o.RolledBack("device", errors.New("no"))
	o.Swept("device", "roll back", nil)

	values := gathered(t, registry)
	maps.DeleteFunc(values, func(name string, _ float64) bool {
		return !regexp.MustCompile("attempts|rollbacks|swept|holds( |$)").MatchString(name)
	})
	assert.Equal(t, map[string]float64{
		"prebind_attempts_total bound": 2, "prebind_rollbacks_total device done": 1, "prebind_rollbacks_total device failed": 1,
		"prebind_rollbacks_total volumebinding failed": 0, "prebind_swept_total device failed commit": 0, "prebind_swept_total device failed roll back": 0,
		"prebind_swept_total volumebinding failed commit": 0, "prebind_swept_total volumebinding failed roll back": 0,
		"prebind_swept_total device done roll back": 1, "prebind_attempts prepared": 0, "prebind_attempts undoing": 0, "prebind_attempts preparing": 2,
		"prebind_holds": 3, "prebind_max_holds": 32,
	}, values)
}

// TestRecorder_AuditAndReady checks that decisions in mode Audit have their own metric.
func TestRecorder_AuditAndReady(t *testing.T) {
	clock, registry := clocktesting.NewFakePassiveClock(time.Time{}), prometheus.NewRegistry()
	refusal := framework.Refuse(framework.Object{}, "no")
	refusal.Plugin = "device"
	m, err := New(Options{Registry: registry, Clock: clock})
	require.NoError(t, err)
	problem := errors.New("away")
	m.Show(func() binder.Stats { return binder.Stats{} }, func() error { return problem })
	for _, d := range []binder.Decision{{Audit: &binder.Audit{Kind: "refused", Err: refusal}}, {Audit: &binder.Audit{Kind: "waiting"}}, {}} {
		m.Engine(answering{d, clock}).Bind(t.Context(), binder.Request{})
	}
	require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP prebind_audited_decisions_total Decisions in mode Audit, by decision and by the plugin that would have rejected or delayed the bind. All of these Bindings were allowed.
# TYPE prebind_audited_decisions_total counter
prebind_audited_decisions_total{decision="refused",plugin="device"} 1
prebind_audited_decisions_total{decision="waiting",plugin=""} 1
# HELP prebind_decisions_total Answers to Bindings, by decision and by the plugin that rejected or delayed the bind.
# TYPE prebind_decisions_total counter
prebind_decisions_total{decision="allowed",plugin=""} 1
prebind_decisions_total{decision="audited",plugin=""} 2
# HELP prebind_ready 1 if this replica is ready for Bindings, else 0. /readyz returns the reason.
# TYPE prebind_ready gauge
prebind_ready 0
`), "prebind_audited_decisions_total", "prebind_decisions_total", "prebind_ready"))
	problem = nil
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() == "prebind_ready" {
			assert.InDelta(t, 1, f.GetMetric()[0].GetGauge().GetValue(), 0)
		}
	}
}
