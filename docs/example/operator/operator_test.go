// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

func TestDecide(t *testing.T) {
	with := fake.NewFakeClient(&admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "prebind"}})
	without := fake.NewFakeClient()
	early, late := &corev1.ConfigMap{}, &corev1.ConfigMap{}
	for _, step := range []struct {
		reason    string
		installed bool
		resource  *corev1.ConfigMap
		want      bool
	}{
		{"Prebind is not installed", false, early, false},
		{"an installation does not change an earlier decision", true, early, false},
		{"Prebind is installed", true, late, true},
		{"an uninstallation does not change an earlier decision", false, late, true},
	} {
		reader := without
		if step.installed {
			reader = with
		}
		got, err := Decide(t.Context(), reader, step.resource)
		require.NoError(t, err)
		assert.Equal(t, step.want, got, step.reason)
	}
}

func TestRack(t *testing.T) {
	annotated := map[string]string{rackAnnotation: "rack-7"}
	for name, tc := range map[string]struct {
		node        string
		annotations map[string]string
		rack        string
		fails       bool
	}{
		"Bound":        {node: "node-1", annotations: annotated, rack: "rack-7"},
		"BoundWithout": {node: "node-1", fails: true},
		"Pending":      {annotations: annotated},
	} {
		t.Run(name, func(t *testing.T) {
			rack, err := Rack(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: tc.annotations}, Spec: corev1.PodSpec{NodeName: tc.node}})
			assert.Equal(t, tc.rack, rack)
			assert.Equal(t, tc.fails, err != nil)
		})
	}
}
