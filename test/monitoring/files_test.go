// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

const root = "../.."

func read(t *testing.T, path ...string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(append([]string{root}, path...)...))
	require.NoError(t, err)
	return content
}

// rule returns the shipped PrometheusRule. A field that the operator does not know
// fails the test.
func rule(t *testing.T) *monitoringv1.PrometheusRule {
	t.Helper()
	rule := &monitoringv1.PrometheusRule{}
	require.NoError(t, yaml.UnmarshalStrict(read(t, "config", "webhook", "monitoring", "prometheusrule.yaml"), rule))
	return rule
}

// alerts are those of the rule, in order.
func alerts(t *testing.T) []monitoringv1.Rule {
	t.Helper()
	var all []monitoringv1.Rule
	for _, group := range rule(t).Spec.Groups {
		all = append(all, group.Rules...)
	}
	return all
}

// panel is one of the dashboard, as far as these tests look at it.
type panel struct {
	ID          int    `json:"id"`
	Type        string `json:"type"`
	Title       string `json:"title"`
	Description string `json:"description"`
	FieldConfig struct {
		Defaults struct {
			Unit string `json:"unit"`
		} `json:"defaults"`
	} `json:"fieldConfig"`
	Targets []struct {
		Expr         string `json:"expr"`
		LegendFormat string `json:"legendFormat"`
	} `json:"targets"`
}

func panels(t *testing.T) []panel {
	t.Helper()
	var dashboard struct {
		Panels []panel `json:"panels"`
	}
	require.NoError(t, json.Unmarshal(read(t, "config", "webhook", "monitoring", "dashboard.json"), &dashboard))
	require.NotEmpty(t, dashboard.Panels)
	return dashboard.Panels
}

var line = regexp.MustCompile("(?m)^- `(prebind_\\w+)` \\((\\w+)(.*?)\\): ")

// documented returns the labels of each series of docs/metrics.md, which is made
// from the program.
func documented(t *testing.T) map[string][]string {
	t.Helper()
	series := map[string][]string{}
	for _, found := range line.FindAllStringSubmatch(string(read(t, "docs", "metrics.md")), -1) {
		name, labels := found[1], strings.FieldsFunc(found[3], func(r rune) bool { return strings.ContainsRune("`,; ", r) })
		if found[2] != "histogram" {
			series[name] = labels
			continue
		}
		for _, suffix := range []string{"_sum", "_count"} {
			series[name+suffix] = labels
		}
		series[name+"_bucket"] = append(labels, "le")
	}
	require.NotEmpty(t, series)
	// The API server's. An end-to-end test compares these selectors with a real one.
	called := []string{"name", "type", "operation", "rejected"}
	for _, suffix := range []string{"_sum", "_count"} {
		series["apiserver_admission_webhook_admission_duration_seconds"+suffix] = called
	}
	series["apiserver_admission_webhook_admission_duration_seconds_bucket"] = append(called, "le")
	series["apiserver_admission_webhook_rejection_count"] = []string{"name", "type", "operation", "error_type", "rejection_code"}
	series["apiserver_admission_webhook_fail_open_count"] = []string{"name", "type"}
	series["apiserver_request_total"] = []string{"verb", "dry_run", "group", "version", "resource", "subresource", "scope", "component", "code"}
	return series
}
