// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package manifests_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/prebind/prebind/test/metrics"
)

const monitoring = "config/webhook/monitoring"

// monitored renders the component. Its alerts and queries are tried out in
// test/monitoring, a module of its own: that takes Prometheus.
func monitored(t *testing.T) (raw []byte, byKind map[string]unstructured.Unstructured) {
	t.Helper()
	raw, err := kustomize(t.Context(), monitoring)
	require.NoError(t, err)
	byKind = map[string]unstructured.Unstructured{}
	documents := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(raw)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return raw, byKind
		}
		require.NoError(t, err)
		var object unstructured.Unstructured
		require.NoError(t, yaml.Unmarshal(document, &object.Object))
		assert.NotContains(t, byKind, object.GetKind())
		assert.Equal(t, namespace, object.GetNamespace())
		byKind[object.GetKind()] = object
	}
}

// TestMonitoringNames: an alert on a metric that does not exist never fires.
func TestMonitoringNames(t *testing.T) {
	raw, _ := monitored(t)
	existing, err := metrics.All()
	require.NoError(t, err)
	series := map[string]bool{}
	for _, m := range existing {
		for _, name := range m.Series() {
			series[name] = true
		}
	}
	used := regexp.MustCompile(`prebind_\w+`).FindAllString(string(raw), -1)
	slices.Sort(used)
	for _, name := range slices.Compact(used) {
		assert.True(t, series[name], "%s is queried, and is none of the metrics of docs/metrics.md", name)
	}
}

// TestMonitoringReachesReplicas: the PodMonitor goes for the pods and the port that
// the Deployment has.
func TestMonitoringReachesReplicas(t *testing.T) {
	_, byKind := monitored(t)
	deployment := all[*appsv1.Deployment](render(t, everything))[0]
	monitor := byKind["PodMonitor"]
	selector, _, err := unstructured.NestedStringMap(monitor.Object, "spec", "selector", "matchLabels")
	require.NoError(t, err)
	require.NotEmpty(t, selector)
	for key, value := range selector {
		assert.Equal(t, value, deployment.Spec.Template.Labels[key], key)
	}
	endpoints, _, err := unstructured.NestedSlice(monitor.Object, "spec", "podMetricsEndpoints")
	require.NoError(t, err)
	require.Len(t, endpoints, 1)
	endpoint, ok := endpoints[0].(map[string]any)
	require.True(t, ok)
	var ports []any
	for _, p := range deployment.Spec.Template.Spec.Containers[0].Ports {
		ports = append(ports, p.Name)
	}
	assert.Contains(t, ports, endpoint["port"])
	assert.Equal(t, "/metrics", endpoint["path"])
}

// TestDashboard: Grafana's sidecar finds it under a name that stays, and it is JSON.
func TestDashboard(t *testing.T) {
	_, byKind := monitored(t)
	config := byKind["ConfigMap"]
	assert.Equal(t, "prebind-dashboard", config.GetName())
	assert.Equal(t, map[string]string{"grafana_dashboard": "1"}, config.GetLabels())
	data, _, err := unstructured.NestedStringMap(config.Object, "data")
	require.NoError(t, err)
	assert.True(t, json.Valid([]byte(data["prebind.json"])))
	assert.Less(t, len(data["prebind.json"]), corev1.MaxSecretSize, "what a ConfigMap can hold")
}
