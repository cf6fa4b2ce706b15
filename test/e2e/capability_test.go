// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// Features that not all supported versions of Kubernetes enable. Each is a feature gate of kube-apiserver.
const (
	copiesLabels      = "PodTopologyLabelsAdmission"
	bindingConditions = "DRADeviceBindingConditions"
	mutatingPolicies  = "MutatingAdmissionPolicy"
)

// enabled reports whether kube-apiserver enables the feature gate. A gate that its version does not know is not enabled.
func (w *world) enabled(t *testing.T, feature string) bool {
	t.Helper()
	raw, err := w.client.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	require.NoError(t, err)
	require.Contains(t, string(raw), "kubernetes_feature_enabled{", "the API server should report its feature gates")
	return regexp.MustCompile(`(?m)^kubernetes_feature_enabled\{name="` + feature + `",.*\} 1$`).Match(raw)
}

// needs skips the test if kube-apiserver does not enable the feature gate.
func (w *world) needs(t *testing.T, feature string) {
	t.Helper()
	if !w.enabled(t, feature) {
		t.Skipf("kube-apiserver does not enable %s", feature)
	}
}

// assertCopied checks that the pod has the label of its Binding if the API server copies labels, and otherwise not.
func (w *world) assertCopied(t *testing.T, pod *corev1.Pod, key, value string) {
	t.Helper()
	if w.enabled(t, copiesLabels) {
		assert.Equal(t, value, pod.Labels[key])
	} else {
		assert.NotContains(t, pod.Labels, key, "the API server does not enable %s", copiesLabels)
	}
}
