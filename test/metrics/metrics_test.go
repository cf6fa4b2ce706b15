// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAll(t *testing.T) {
	all, err := All()
	require.NoError(t, err)
	seen := map[string]Metric{}
	var text strings.Builder
	for _, m := range all {
		assert.NotContains(t, seen, m.Name, "a name stands for one metric")
		seen[m.Name] = m
		assert.Regexp(t, `^prebind_[a-z_]+$`, m.Name)
		assert.Regexp(t, `\.$`, m.Help, "%s: its help is a sentence", m.Name)
		for _, label := range m.Labels {
			assert.NotContains(t, []string{"pod", "node", "namespace", "uid", "attempt", "user"}, label, "%s would have a series for each", m.Name)
		}
		text.WriteString(sample(m))
	}
	problems, err := promlint.New(strings.NewReader(text.String())).Lint()
	require.NoError(t, err)
	assert.Empty(t, problems, "names are as Prometheus has them")

	assert.Equal(t, []string{"plugin", "extension_point", "result"}, seen["prebind_plugin_duration_seconds"].Labels)
	assert.Equal(t, histogram, seen["prebind_bind_wait_seconds"].Type, "also without labels")
	assert.Equal(t, counter, seen["prebind_holds_refused_total"].Type)
	assert.Equal(t, gauge, seen["prebind_attempts"].Type, "also by a collector of one's own")
	assert.ElementsMatch(t, []string{"version", "goversion"}, seen["prebind_build_info"].Labels)
	assert.Equal(t, []string{"prebind_bind_wait_seconds_bucket", "prebind_bind_wait_seconds_sum", "prebind_bind_wait_seconds_count"},
		seen["prebind_bind_wait_seconds"].Series())
}

// sample is the metric as Prometheus reads it, with one series.
func sample(m Metric) string {
	labels := []string{}
	for _, label := range m.Labels {
		labels = append(labels, label+`="x"`)
	}
	out := fmt.Sprintf("# HELP %s %s\n# TYPE %s %s\n", m.Name, m.Help, m.Name, m.Type)
	for _, series := range m.Series() {
		own := labels
		if strings.HasSuffix(series, "_bucket") {
			own = append(slices.Clip(own), `le="+Inf"`)
		}
		out += fmt.Sprintf("%s{%s} 0\n", series, strings.Join(own, ","))
	}
	return out
}

// silent describes a metric and never collects it.
type silent struct{ desc *prometheus.Desc }

func (s silent) Describe(to chan<- *prometheus.Desc) { to <- s.desc }
func (s silent) Collect(chan<- prometheus.Metric)    {}

func TestRegisterComplains(t *testing.T) {
	r := &register{}
	r.MustRegister(silent{prometheus.NewDesc("prebind_x", "X.", nil, nil)})
	assert.Len(t, r.problems, 1, "a document must not lack it, or guess its type")
	assert.Empty(t, r.found)
}
