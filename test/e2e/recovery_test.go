// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
	"github.com/prebind/prebind/test/install"
)

// TestPluginFromOutside runs the program of docs/example, with the roles of its plugins. The plugin license requires a rollback.
func TestPluginFromOutside(t *testing.T) {
	t.Parallel()
	c := ownCluster(t, cluster.Options{Audit: true})
	binary, err := install.Build(t.Context(), install.BuildOptions{Dir: c.Dir(), Race: true, Package: "./docs/example"})
	require.NoError(t, err)
	w := ownWorld(t, install.Options{Cluster: c, Binary: binary}, 0)
	require.NoError(t, w.prebind.AddComponents(t.Context(), "../../docs/example/after/config", "../../docs/example/license/config", "plugins/policy"))
	all := &bench{world: w, t: t}
	all.kubectl("delete", "rolebinding", "prebind-device", "prebind-volumebinding", "--namespace="+install.Namespace) // They permit the same as prebind-license.
	for range 2 {
		_, err := w.prebind.Start(t.Context(), "--shutdown-delay=1s", "--prebind-plugins=after,license,policy", "--license-seats=1")
		require.NoError(t, err)
	}
	t.Run("what a killed replica left behind is swept", func(t *testing.T) {
		b := newBench(t, w, nil)
		b.podWith(byHand, gen.Annotation("license.prebind.dev/product", "matlab"))
		b.refusedAfterUs("node-4")
		var held []framework.Mark
		require.NoError(t, json.Unmarshal([]byte(b.license()), &held))
		require.Len(t, held, 1)
		killed := b.replicaOfAttempt(held[0].Attempt)
		require.NoError(t, killed.Kill())
		require.NotEmpty(t, b.license())
		b.untilLicense("")
		b.assertNotBound()
		// The replica restarts, and its binds continue.
		require.NoError(t, killed.Restart(t.Context()))
		require.NoError(t, b.bindByHand(b.binding("node-4")))
		b.untilBound()
		b.untilLicense("[]")
		b.deletePod()
	})

	t.Run("a killed replica leaves a task", func(t *testing.T) { testTaskOfKilledReplica(newPolicies(t, w)) })
	t.Run("a killed replica has not confirmed a task", func(t *testing.T) { testTaskOfBoundPodIsSwept(newPolicies(t, w)) })
	t.Run("a pod waits for a Job, by the plugin that the documentation builds", func(t *testing.T) { testAfter(t, w) })
	all.untilLicense("") // Its pod has ended.
}

// testAfter follows docs/writing-a-plugin.md. The role comes from the component of the plugin.
func testAfter(t *testing.T, w *world) {
	b := newBench(t, w, nil)
	jobs := b.client.BatchV1().Jobs(b.ns)
	job, err := jobs.Create(t.Context(), &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "migrate"},
		Spec: batchv1.JobSpec{
			ManagedBy: new("example.com/e2e"), // kube-controller-manager does not change it.
			Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
				RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c", Image: "none"}},
			}},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	const key = "after.prebind.dev/jobs"
	b.podWith(byHand, gen.Annotation(key, "migrate"))
	x, code := b.explain("node-5")
	assert.Equal(t, 1, code)
	assert.Equal(t, []string{"Job " + b.ns + "/migrate: the Job to complete"}, x.plugin("after").WaitsFor)

	bound := b.beginBind("node-5")
	b.untilEvent("WaitingForPreBind", "after: Job "+b.ns+"/migrate: waiting for the Job to complete")
	job.Status = batchv1.JobStatus{StartTime: new(metav1.Now()), CompletionTime: new(metav1.Now()), Succeeded: 1}
	for _, condition := range []batchv1.JobConditionType{batchv1.JobSuccessCriteriaMet, batchv1.JobComplete} {
		job.Status.Conditions = append(job.Status.Conditions, batchv1.JobCondition{Type: condition, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()})
	}
	_, err = jobs.UpdateStatus(t.Context(), job, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.NoError(t, b.end(bound))
	b.untilBound()
}

// refusal is a policy that rejects all Bindings in the namespace %[1]s with the message %[2]s.
const refusal = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: refuse-%[1]s}
spec:
  matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods/binding]}]}
  validations: [{expression: "false", message: %[2]s}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: refuse-%[1]s}
spec:
  policyName: refuse-%[1]s
  validationActions: [Deny]
  matchResources: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: %[1]s}}}
`

// refusedAfterUs posts a Binding that a policy of the namespace rejects after the webhook has allowed it. It deletes the policy before
// it returns.
func (b *bench) refusedAfterUs(node string) {
	b.t.Helper()
	const message = "not in this namespace"
	policy := fmt.Sprintf(refusal, b.ns, message)
	b.manifest("apply", policy)
	dryRun := func() error {
		return b.client.CoreV1().Pods(b.ns).Bind(b.t.Context(), b.binding(node), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	}
	require.EventuallyWithT(b.t, func(c *assert.CollectT) { assert.ErrorContains(c, dryRun(), message) }, patience, again, "the policy should be in force")
	require.ErrorContains(b.t, b.bindByHand(b.binding(node)), message)
	said := b.decisions()
	require.Equal(b.t, "allowed", said[len(said)-1])
	b.manifest("delete", policy)
	require.EventuallyWithT(b.t, func(c *assert.CollectT) {
		err := dryRun()
		assert.False(c, err != nil && strings.Contains(err.Error(), message), "the policy should be deleted")
	}, patience, again)
}

// license returns the marks of the license, or "" if it does not exist.
func (b *bench) license() string {
	b.t.Helper()
	license, err := b.client.CoreV1().ConfigMaps(install.Namespace).Get(b.t.Context(), "license-matlab-1", metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		require.NoError(b.t, err)
	}
	return license.Annotations["license.prebind.dev/marks"]
}

func (b *bench) untilLicense(marks string) {
	b.t.Helper()
	err := wait.PollUntilContextTimeout(b.t.Context(), reads, 2*patience, true, func(context.Context) (bool, error) { return b.license() == marks, nil })
	require.NoError(b.t, err, "the license should have the marks %q, not %q", marks, b.license())
}

// replicaOfAttempt returns the replica that started the attempt.
func (b *bench) replicaOfAttempt(attempt string) *install.Replica {
	b.t.Helper()
	id, _, _ := strings.Cut(attempt, "-")
	for _, r := range b.prebind.Replicas() {
		log, err := os.ReadFile(r.LogFile())
		require.NoError(b.t, err)
		if strings.Contains(string(log), `replica="`+id+`"`) {
			return r
		}
	}
	require.Fail(b.t, "no replica has the attempt", attempt)
	return nil
}
