// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package assembly

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/prebind/prebind/telemetry"
)

// TestReloader_Read checks that a changed file is applied once. A rejected file is reported once
// and retried until the file has its previous content again.
func TestReloader_Read(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.yaml")
	write := func(content string) { require.NoError(t, os.WriteFile(file, []byte(content), 0o600)) }
	registry := prometheus.NewRegistry()
	recorder, err := telemetry.New(telemetry.Options{Registry: registry, Clock: clock.RealClock{}})
	require.NoError(t, err)
	recorder.ConfigApplied("first", time.Time{})
	value := func(name string) float64 {
		families, err := registry.Gather()
		require.NoError(t, err)
		for _, f := range families {
			if f.GetName() == name {
				m := f.GetMetric()[len(f.GetMetric())-1]
				return m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
		return -1
	}
	recorded, now := events.NewFakeRecorder(100), clocktesting.NewFakeClock(time.Now())
	r := &Reloader{o: ReloadOptions{File: file, Recorder: recorder, Events: recorded, Clock: now}, content: []byte("first")}
	var put []string
	fails := map[string]error{}
	r.apply = func(_ context.Context, content []byte) error {
		put = append(put, string(content))
		return fails[string(content)]
	}
	successful := func() float64 { return value("prebind_config_last_reload_successful") }
	look := func() { r.read(t.Context()) }

	write("first")
	look()
	assert.Empty(t, put, "the content is already in force")

	write("second")
	look()
	look()
	assert.Equal(t, []string{"second"}, put, "a changed file is applied once")

	fails["bad"] = errors.New("line 1\nline 2")
	write("bad")
	look()
	look()
	assert.Equal(t, []string{"second", "bad"}, put, "a rejected file is not retried at once")
	assert.Zero(t, successful())
	require.Len(t, recorded.Events, 1)
	assert.Equal(t, "Warning ConfigurationRefused rejected the new configuration; the previous one stays in force: line 1; line 2", <-recorded.Events)

	now.Step(retryInterval)
	look()
	assert.Len(t, put, 3, "a rejected file is retried after the interval")
	assert.Empty(t, recorded.Events, "a problem is reported once")
	assert.InDelta(t, 1, value("prebind_config_reloads_total"), 0)

	write("second")
	look()
	assert.Len(t, put, 3, "the content is still in force")
	assert.InDelta(t, 1, successful(), 0)

	require.NoError(t, os.Remove(file))
	look()
	assert.Zero(t, successful())
	assert.Contains(t, <-recorded.Events, "no such file")

	write("third")
	look()
	assert.Equal(t, "third", put[len(put)-1])
	assert.InDelta(t, 1, successful(), 0)
}
