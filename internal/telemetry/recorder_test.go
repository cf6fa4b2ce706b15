// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package telemetry

import (
	"errors"
	"maps"
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

	"github.com/prebind/prebind/binder/framework"
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
