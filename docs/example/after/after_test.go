// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package after

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/framework/frameworktest"
)

var now = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func job(ended batchv1.JobConditionType, ago time.Duration) *batchv1.Job {
	j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "migrate"}}
	if ended != "" {
		j.Status.Conditions = []batchv1.JobCondition{{Type: ended, Status: corev1.ConditionTrue}}
		j.Status.CompletionTime = &metav1.Time{Time: now.Add(-ago)}
	}
	return j
}

// podAfter returns a pod that requests the Jobs, and its node.
func podAfter(jobs string) (*corev1.Pod, *corev1.Node) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "shop", Name: "web", UID: "web-uid", Annotations: map[string]string{"after.prebind.dev/jobs": jobs},
	}}
	return pod, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}
}

func TestWait(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		job    *batchv1.Job
		waits  string
		kind   framework.Kind
	}{
		"Complete": {reason: "there is nothing to wait for", job: job(batchv1.JobComplete, 0)},
		"Running":  {reason: "the pod must not start before its Job is complete", job: job("", 0), waits: "the Job to complete"},
		"Missing":  {reason: "the pod may be created before the Job", waits: "the Job to be created"},
		"Failed":   {reason: "the wait would never end", job: job(batchv1.JobFailed, 0), kind: framework.KindRefuse},
		"TooOld":   {reason: "the operator limits the age", job: job(batchv1.JobComplete, 2*time.Hour), kind: framework.KindRefuse},
	} {
		t.Run(name, func(t *testing.T) {
			a := &arguments{MaxAge: metav1.Duration{Duration: time.Hour}}
			wait, err := a.wait(framework.Object{}, tc.job, now)
			assert.Equal(t, tc.waits, wait.For, tc.reason)
			assert.Equal(t, tc.kind != "", frameworktest.IsKind(err, tc.kind), "%s: %v", tc.reason, err)
		})
	}
}

func TestBind_EndsWhenTheJobCompletes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod, node := podAfter("migrate")
		c := frameworktest.New(t, Registration(), nil, pod, node, job("", 0))
		ended := make(chan binder.Decision, 1)
		go func() { ended <- c.Post(t.Context(), pod, node.Name) }()
		synctest.Wait()
		require.Empty(t, ended)

		c.Put(job(batchv1.JobComplete, 0))
		assert.Nil(t, (<-ended).Err)
	})
}

func TestBind_RejectsInvalidNames(t *testing.T) {
	pod, node := podAfter("migrate,")
	c := frameworktest.New(t, Registration(), nil, pod, node)
	_, err := c.PreFlight(t.Context(), c.Context(pod, node))
	assert.True(t, frameworktest.IsKind(err, framework.KindInvalid), "%v", err)
}
