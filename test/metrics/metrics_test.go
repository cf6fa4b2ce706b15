// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAll(t *testing.T) {
	all, err := All()
	require.NoError(t, err)
	seen := map[string]bool{}
	var text strings.Builder
	for _, m := range all {
		assert.NotContains(t, seen, m.Name, "a name stands for one metric")
		seen[m.Name] = true
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
