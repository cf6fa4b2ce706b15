// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/prebind/prebind/test/cluster"
)

// byLoad is the annotation that the policy sets. Its value is that of decidedFor.
const byLoad = "load.policy.prebind.dev/by"

// binders contains the users that bind the pods of the schedulers of the load.
var binders = map[string]string{
	byHand: "prebind-test-admin", cluster.DefaultScheduler: "system:kube-scheduler", cluster.NoPreBindScheduler: "system:kube-scheduler",
}

// decidedFor returns the value that the policy gives to a pod on its node, if the user posted the Binding.
func decidedFor(pod *corev1.Pod, user string) string {
	return pod.Name + " " + user + " " + pod.Spec.NodeName
}

// policy creates the policy, and waits until the only replica applies it.
func (w *world) policy(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool { // The leader copies the CA bundle of the webhook for policies.
		return w.cluster.Kubectl(t.Context(), "apply", "-f", "testdata/policy.yaml").Run() == nil
	}, cluster.Patience, 500*time.Millisecond, "the policy should be applied")
	out, err := w.cluster.Kubectl(t.Context(), "wait", "--for=condition=Ready", "--timeout=1m", "bindpolicies", "--all").CombinedOutput()
	require.NoError(t, err, "%s", out)
}
