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
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/mutation"
	"github.com/prebind/prebind/internal/work"
	"github.com/prebind/prebind/mutators"
	"github.com/prebind/prebind/test/gen"
)

// gathered returns the values of a registry by name and label values. The value of a
// histogram is its sum.
func gathered(t *testing.T, registry prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	values := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			key := family.GetName()
			for _, l := range metric.GetLabel() {
				key += " " + l.GetValue()
			}
			values[key] = metric.GetCounter().GetValue() + metric.GetGauge().GetValue() + metric.GetHistogram().GetSampleSum()
		}
	}
	return values
}

// slow is a mutator that takes a second and fails.
type slow struct {
	clock *clocktesting.FakePassiveClock
}

func (slow) Name() string { return "slow" }

func (s slow) Mutate(mutators.Input) (mutators.Output, error) {
	s.clock.SetTime(s.clock.Now().Add(time.Second))
	return mutators.Output{}, errors.New("no")
}

func TestRecorder_Steps(t *testing.T) {
	now := clocktesting.NewFakePassiveClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	registry := prometheus.NewRegistry()
	s, err := New(Options{Registry: registry, Clock: now})
	require.NoError(t, err)
	after := func(step work.Step, seconds int, err error) {
		_, end := s.Step(t.Context(), step)
		now.SetTime(now.Now().Add(time.Duration(seconds) * time.Second))
		end(err)
	}
	of := func(name, plugin string) work.Step {
		return work.Step{Name: name, Plugin: plugin, Node: "node-a", Attempt: "a-1"}
	}
	after(of(work.StepPreFlight, "device"), 1, nil)
	after(of(work.StepPreBind, "device"), 2, framework.Refuse(framework.Object{}, "no"))
	after(of(work.StepPreBind, "device"), 3, framework.Refuse(framework.Object{}, "no"))
	after(of(work.StepHold, ""), 100, nil)
	s.ReadLive("Pod", work.ReadMissing)
	s.HoldRefused()
	_, err = s.Mutator(slow{now}).Mutate(mutators.Input{})
	require.Error(t, err, "the error of the mutator is returned")

	live := s.Reader(fake.NewClientBuilder().WithObjects(gen.Node("node-a")).Build(), "device")
	require.NoError(t, live.Get(t.Context(), client.ObjectKey{Name: "node-a"}, &corev1.Node{}))
	require.NoError(t, live.List(t.Context(), &corev1.NodeList{}))
	require.Error(t, live.Get(t.Context(), client.ObjectKey{Name: "node-b"}, &corev1.Node{}))

	values := gathered(t, registry)
	maps.DeleteFunc(values, func(name string, v float64) bool {
		return v == 0 || strings.HasPrefix(name, "prebind_build_info") || strings.HasPrefix(name, "prebind_config_info") || name == "prebind_ready"
	})
	assert.Equal(t, map[string]float64{
		"prebind_plugin_duration_seconds PreFlight device ok":    1,
		"prebind_plugin_duration_seconds PreBind device refused": 5,
		"prebind_mutator_duration_seconds slow":                  1,
		"prebind_live_reads_total Pod binder missing":            1,
		"prebind_live_reads_total Node device plugin":            3,
		"prebind_holds_refused_total":                            1,
	}, values, "steps of the engine do not count for a plugin")
}

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
		{Audit: &binder.Audit{Kind: "refused", Err: refusal}},
		{Audit: &binder.Audit{Kind: "waiting"}},
	}
	m, err := New(Options{Registry: registry, Clock: clock})
	require.NoError(t, err)
	for _, d := range decisions {
		m.Engine(answering{d, clock}).Bind(t.Context(), binder.Request{})
		m.Engine(answering{d, clock}).Bind(t.Context(), binder.Request{DryRun: true}) // Not a decision.
	}

	families, err := registry.Gather()
	require.NoError(t, err)
	for _, family := range families {
		assert.Contains(t, family.GetName(), "prebind_")
		assert.NotEmpty(t, family.GetHelp())
		for _, metric := range family.GetMetric() {
			for _, l := range metric.GetLabel() {
				assert.Contains(t, []string{"decision", "plugin", "mutator", "source", "result", "phase", "version", "goversion", "hash", "mode", "reason"}, l.GetName(), "labels do not contain pods, nodes or namespaces")
				assert.NotContains(t, []string{"web-7f", "shop", "node-a"}, l.GetValue(), "values of labels do not contain pods, nodes or namespaces")
			}
		}
	}
	values := gathered(t, registry)
	assert.InDelta(t, 3690, values["prebind_bind_wait_seconds"], 0.001, "the metric includes binds that were allowed or rejected after a wait, once")
	maps.DeleteFunc(values, func(name string, _ float64) bool { return !regexp.MustCompile("decision|mutator_").MatchString(name) })
	assert.Equal(t, map[string]float64{
		"prebind_decisions_total allowed ": 2, "prebind_decisions_total passed-through ": 1, "prebind_decisions_total refused volumebinding": 3,
		"prebind_decisions_total audited ": 2, "prebind_audited_decisions_total refused volumebinding": 1, "prebind_audited_decisions_total waiting ": 1,
		"prebind_decision_duration_seconds allowed": 2, "prebind_decision_duration_seconds passed-through": 1,
		"prebind_decision_duration_seconds refused": 3, "prebind_decision_duration_seconds audited": 2,
		"prebind_decision_duration_seconds stale": 0, "prebind_decision_duration_seconds invalid": 0,
		"prebind_decision_duration_seconds internal": 0, "prebind_decision_duration_seconds waiting": 0,
		"prebind_mutator_conflicts_total topology replaced pod": 1, "prebind_mutator_conflicts_total topology kept Binding": 1,
		"prebind_mutator_failures_total node-info": 1,
	}, values, "the unit is seconds")

	_, err = New(Options{Registry: prometheus.NewRegistry(), Clock: clock, Plugins: []framework.Registration{{Metrics: []prometheus.Collector{m.decisions}}}})
	assert.Error(t, err, "a metric of a plugin with the name of another one is an error, not a panic")
}

func TestRecorder_Attempts(t *testing.T) {
	registry := prometheus.NewRegistry()
	o, err := New(Options{Registry: registry, Clock: clocktesting.NewFakePassiveClock(time.Time{}), Plugins: []framework.Registration{{Name: "device"}, {Name: "volumebinding"}}})
	require.NoError(t, err)
	problem, stats := errors.New("away"), binder.Stats{Attempts: map[string]int{"preparing": 2, "failed": 0}, Holds: 3, MaxHolds: 32}
	o.Show(func() binder.Stats { return stats }, func() error { return problem })
	o.AttemptEnded("bound")
	o.AttemptEnded("bound")
	o.RolledBack("device", nil)
	o.RolledBack("device", errors.New("no"))
	o.Swept("device", "roll back", nil)

	values := gathered(t, registry)
	maps.DeleteFunc(values, func(name string, _ float64) bool {
		return !regexp.MustCompile("ready|attempts|rollbacks|swept|holds( |$)").MatchString(name)
	})
	assert.Equal(t, map[string]float64{
		"prebind_attempts_total bound": 2, "prebind_rollbacks_total device done": 1, "prebind_rollbacks_total device failed": 1,
		"prebind_rollbacks_total volumebinding failed": 0, "prebind_swept_total device failed commit": 0, "prebind_swept_total device failed roll back": 0,
		"prebind_swept_total device failed list": 0, "prebind_swept_total device failed tidy": 0,
		"prebind_swept_total volumebinding failed commit": 0, "prebind_swept_total volumebinding failed roll back": 0,
		"prebind_swept_total volumebinding failed list": 0, "prebind_swept_total volumebinding failed tidy": 0,
		"prebind_swept_total device done roll back": 1, "prebind_attempts prepared": 0, "prebind_attempts rollback": 0, "prebind_attempts preparing": 2,
		"prebind_holds": 3, "prebind_max_holds": 32, "prebind_ready": 0,
	}, values)
	problem = nil
	assert.InDelta(t, 1, gathered(t, registry)["prebind_ready"], 0)
}
