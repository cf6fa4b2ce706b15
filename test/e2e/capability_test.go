// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"regexp"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/prebind/prebind/test/cluster"
)

// Features that not all supported versions of Kubernetes enable. Each is a feature gate of kube-apiserver.
const (
	copiesLabels      = "PodTopologyLabelsAdmission"
	bindingConditions = "DRADeviceBindingConditions"
	mutatingPolicies  = "MutatingAdmissionPolicy"
)

// effects are the behaviors that tests need.
var effects = map[string]string{
	copiesLabels:      "the API server copies labels of a Binding to the pod",
	bindingConditions: "ResourceClaims have binding conditions",
	mutatingPolicies:  "the API server applies MutatingAdmissionPolicies",
}

// features are the feature gates that the kube-apiserver of each cluster enables. They do not change.
var features = struct {
	sync.Mutex
	of map[*cluster.Cluster]map[string]bool
}{of: map[*cluster.Cluster]map[string]bool{}}

var enabledFeature = regexp.MustCompile(`(?m)^kubernetes_feature_enabled\{name="(\w+)",.*\} 1$`)

// enabled reports whether kube-apiserver enables the feature gate. A gate that its version does not know is not enabled.
func (w *world) enabled(t *testing.T, feature string) bool {
	t.Helper()
	features.Lock()
	defer features.Unlock()
	enabled := features.of[w.cluster]
	if enabled == nil {
		raw, err := w.client.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
		require.NoError(t, err)
		enabled = map[string]bool{}
		for _, match := range enabledFeature.FindAllSubmatch(raw, -1) {
			enabled[string(match[1])] = true
		}
		require.NotEmpty(t, enabled, "the API server should report its feature gates")
		features.of[w.cluster] = enabled
	}
	return enabled[feature]
}

// needs skips the test if kube-apiserver does not enable the feature gate.
func (w *world) needs(t *testing.T, feature string) {
	t.Helper()
	if w.enabled(t, feature) {
		return
	}
	t.Skipf("kube-apiserver does not enable %s: %s", feature, effects[feature])
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
