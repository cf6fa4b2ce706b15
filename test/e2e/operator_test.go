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

// The operator of docs/example/operator detects Prebind, and reads the rack of its pods, also of those that it binds itself where
// Prebind does not take part. The policy rack-awareness is in force.
func testOperator(t *testing.T, w *world) {
	c, err := client.New(w.cluster.Config(), client.Options{})
	require.NoError(t, err)
	installed, err := operator.Installed(t.Context(), c.RESTMapper(), c)
	require.NoError(t, err)
	assert.True(t, installed)
	create := func(b *bench, scheduler string) *corev1.Pod {
		pod := gen.Pod("pod", gen.InNamespace(b.ns), gen.Scheduler(scheduler), gen.EndsAtOnce())
		template := &corev1.PodTemplateSpec{ObjectMeta: pod.ObjectMeta, Spec: pod.Spec}
		operator.Require(template, "busybox:1.37")
		pod.ObjectMeta, pod.Spec = template.ObjectMeta, template.Spec
		require.NoError(t, c.Create(t.Context(), pod))
		return pod
	}

	with := newBench(t, w, nil)
	create(with, cluster.DefaultScheduler)
	pod := with.untilBound()
	rack, err := operator.Rack(pod)
	require.NoError(t, err)
	assert.NotEmpty(t, rack)
	assert.Equal(t, with.node(pod.Spec.NodeName).Labels[cluster.RackLabel], rack)
	read, err := downward(pod)
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"env RACK": rack}, read)

	without := newBench(t, w, map[string]string{"prebind.dev/exempt": ""})
	require.NoError(t, operator.Bind(t.Context(), c, create(without, byHand), "node-1", "rack-test"))
	rack, err = operator.Rack(without.untilBound())
	require.NoError(t, err)
	assert.Equal(t, "rack-test", rack)
}
