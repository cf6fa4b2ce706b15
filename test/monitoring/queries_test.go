// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// scraped are the labels that the PodMonitor gives to every series.
var scraped = []string{"pod", "namespace", "container", "job", "instance"}

// asked checks that a query can be parsed and asks for metrics and labels that are there, and
// returns the labels of its result that it names.
func asked(t *testing.T, where, query string) (by []string) {
	t.Helper()
	expr, err := parser.NewParser(parser.Options{}).ParseExpr(strings.ReplaceAll(query, "$__rate_interval", "5m"))
	require.NoError(t, err, "%s", where)
	series := documented(t)
	parser.Inspect(expr, func(node parser.Node, path []parser.Node) error {
		selector, ok := node.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		if selector.Name != "up" { // Prometheus itself has this series for each target.
			assert.Contains(t, series, selector.Name, "%s: a metric of docs/metrics.md", where)
		}
		labels := append(slices.Clone(series[selector.Name]), scraped...)
		for _, m := range selector.LabelMatchers {
			if m.Name != model.MetricNameLabel {
				assert.Contains(t, labels, m.Name, "%s: a label of %s", where, selector.Name)
			}
		}
		for _, above := range path {
			if sum, ok := above.(*parser.AggregateExpr); ok && !sum.Without {
				assert.Subset(t, labels, sum.Grouping, "%s: labels of %s", where, selector.Name)
				by = append(by, sum.Grouping...)
			}
		}
		return nil
	})
	return by
}

func TestAlertsAreComplete(t *testing.T) {
	seen := map[string]bool{}
	for _, alert := range alerts(t) {
		name := alert.Alert
		assert.Regexp(t, `^Prebind[A-Z][A-Za-z]+$`, name)
		assert.False(t, seen[name], "%s is there twice", name)
		seen[name] = true
		assert.Contains(t, []string{"critical", "warning"}, alert.Labels["severity"], name)
		for _, key := range []string{"summary", "description"} {
			assert.Regexp(t, `\.$`, strings.TrimSpace(alert.Annotations[key]), "%s: the %s consists of sentences", name, key)
		}
		asked(t, name, alert.Expr.String())
	}
}

// Each alert links to its page in docs/runbooks, and each page belongs to an alert. A page has the same sections as all others.
func TestRunbooks(t *testing.T) {
	pages := map[string]bool{}
	files, err := os.ReadDir(filepath.Join(root, "docs", "runbooks"))
	require.NoError(t, err)
	for _, file := range files {
		if name, ok := strings.CutSuffix(file.Name(), ".md"); ok && name != "README" {
			pages[name] = true
		}
	}
	index := string(read(t, "docs", "runbooks", "README.md"))
	for _, alert := range alerts(t) {
		name := alert.Alert
		assert.Equal(t, "https://github.com/prebind/prebind/blob/main/docs/runbooks/"+name+".md", alert.Annotations["runbook_url"], name)
		if !assert.True(t, pages[name], "%s has no page in docs/runbooks", name) {
			continue
		}
		delete(pages, name)
		page := string(read(t, "docs", "runbooks", name+".md"))
		var headings []string
		for line := range strings.Lines(page) {
			if strings.HasPrefix(line, "#") && !strings.HasPrefix(line, "###") {
				headings = append(headings, strings.TrimSpace(line))
			}
		}
		assert.Equal(t, []string{"# " + name, "## Meaning", "## Impact", "## Diagnosis", "## Mitigation"}, headings, name)
		assert.Contains(t, page, "Severity: "+alert.Labels["severity"]+".", name)
		assert.Contains(t, index, "("+name+".md): "+alert.Labels["severity"], "docs/runbooks/README.md lists each page")
	}
	assert.Empty(t, pages, "pages without an alert")
}

// TestRuleIsAccepted: Prometheus itself reads the groups, with the templates of the
// annotations.
func TestRuleIsAccepted(t *testing.T) {
	groups, err := yaml.Marshal(map[string]any{"groups": rule(t).Spec.Groups})
	require.NoError(t, err)
	_, problems := rulefmt.Parse(groups, false, model.UTF8Validation, parser.NewParser(parser.Options{}))
	assert.Empty(t, problems)
}

func TestPodMonitorIsAccepted(t *testing.T) {
	monitor := &monitoringv1.PodMonitor{}
	require.NoError(t, yaml.UnmarshalStrict(read(t, "config", "webhook", "monitoring", "podmonitor.yaml"), monitor))
	assert.NotEmpty(t, monitor.Spec.PodMetricsEndpoints)
}

var placeholder = regexp.MustCompile(`\{\{(\w+)\}\}`)

func TestDashboardPanels(t *testing.T) {
	seen := map[int]bool{}
	for _, p := range panels(t) {
		assert.False(t, seen[p.ID], "%s: Grafana distinguishes panels by their id", p.Title)
		seen[p.ID] = true
		assert.NotEmpty(t, p.Title)
		if p.Type == "row" {
			continue
		}
		assert.NotEmpty(t, p.Description, "%s: what it means for the operator", p.Title)
		assert.NotEmpty(t, p.FieldConfig.Defaults.Unit, "%s: numbers without a unit mislead", p.Title)
		assert.NotEmpty(t, p.Targets, p.Title)
		for _, target := range p.Targets {
			by := asked(t, p.Title, target.Expr)
			assert.NotEmpty(t, target.LegendFormat, p.Title)
			for _, named := range placeholder.FindAllStringSubmatch(target.LegendFormat, -1) {
				if len(by) > 0 {
					assert.Contains(t, by, named[1], "%s: the legend names a label that the query keeps", p.Title)
				}
			}
			for _, kept := range by {
				if len(placeholder.FindAllString(target.LegendFormat, -1)) > 0 && kept != "le" {
					assert.Contains(t, target.LegendFormat, "{{"+kept+"}}", "%s: two lines would have one legend", p.Title)
				}
			}
		}
	}
}
