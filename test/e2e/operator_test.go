// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/docs/example/operator"
	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
)

// Pods of the operator in docs/example/operator have their rack from Prebind, or else from the operator. The policy rack-awareness is in force.
func testOperator(t *testing.T, w *world) {
	c, err := client.New(w.cluster.Config(), client.Options{})
	require.NoError(t, err)
	for name, tc := range map[string]struct {
		labels map[string]string
		// file is the one that has the rack.
		file string
	}{
		"With":    {file: "file prebind"},
		"Without": {labels: map[string]string{"prebind.dev/exempt": ""}, file: "file operator"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, w, tc.labels)
			pod := gen.Pod("pod", gen.InNamespace(b.ns), gen.Scheduler(cluster.DefaultScheduler), gen.EndsAtOnce())
			template := &corev1.PodTemplateSpec{ObjectMeta: pod.ObjectMeta, Spec: pod.Spec}
			operator.Template(template, "busybox:1.37")
			pod.ObjectMeta, pod.Spec = template.ObjectMeta, template.Spec
			require.NoError(t, c.Create(t.Context(), pod))
			bound := b.untilBound()
			require.NoError(t, operator.Supply(t.Context(), c, c, bound, cluster.RackLabel))
			require.NoError(t, c.Get(t.Context(), client.ObjectKeyFromObject(bound), bound))
			rack := b.node(bound.Spec.NodeName).Labels[cluster.RackLabel]
			assert.Equal(t, rack, operator.Rack(bound))
			read, err := downward(bound)
			require.NoError(t, err)
			other := map[string]string{"file prebind": "file operator", "file operator": "file prebind"}[tc.file]
			assert.Equal(t, map[string]string{tc.file: rack, other: ""}, read)
		})
	}
}
