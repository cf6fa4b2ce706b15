// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package after

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/prebind/prebind/binder/framework"
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

// newPlugin returns one whose cache and API server are the same.
func newPlugin(objects ...client.Object) (*plugin, client.Client) {
	c := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(objects...).Build()
	h := framework.Handle{Cached: c, Live: c, Changes: framework.NewHub(), Clock: clocktesting.NewFakeClock(now)}
	return &plugin{h: h, arguments: &arguments{MaxAge: time.Hour}}, c
}

func bindContext(jobs string) *framework.BindContext {
	return &framework.BindContext{
		Pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "web", Annotations: map[string]string{"after.prebind.dev/jobs": jobs},
		}},
		Node:    &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}},
		Binding: &corev1.Binding{},
		Now:     now,
	}
}

func TestPreFlight(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		reason string
		jobs   string
		has    []client.Object
		want   framework.Next
		waits  string
		kind   framework.Kind
	}{
		"Completed": {reason: "no call is spent on what is done", jobs: "migrate", has: []client.Object{job(batchv1.JobComplete, 0)}, want: framework.Skip},
		"Running":   {reason: "a pod must not start before its Job is done", jobs: "migrate", has: []client.Object{job("", 0)}, want: framework.Run, waits: "the Job to complete"},
		"Missing":   {reason: "who makes pod and Job together may make the pod first", jobs: "migrate", want: framework.Run, waits: "the Job to be created"},
		"Failed":    {reason: "a pod that waited for it would wait for ever", jobs: "migrate", has: []client.Object{job(batchv1.JobFailed, 0)}, kind: framework.KindRefuse},
		"TooOld":    {reason: "the operator's limit holds", jobs: "migrate", has: []client.Object{job(batchv1.JobComplete, 2*time.Hour)}, kind: framework.KindRefuse},
		"NoName":    {reason: "a typing error is told, not ignored", jobs: "migrate,", kind: framework.KindInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, _ := newPlugin(tc.has...)
			bc := bindContext(tc.jobs)
			require.NoError(t, p.SetupBindContextExtension(t.Context(), p.h.Live, bc))
			next, err := p.PreFlight(bc)
			if tc.kind != "" {
				assert.True(t, framework.IsKind(err, tc.kind), "%s: %v", tc.reason, err)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, tc.want, next, tc.reason)
			if tc.waits != "" {
				require.Len(t, bc.WouldWaitFor(), 1)
				assert.Equal(t, tc.waits, bc.WouldWaitFor()[0].For)
			}
		})
	}
}

func TestPreBindGoesOnWhenTheJobCompletes(t *testing.T) {
	t.Parallel()
	bc := bindContext("migrate")
	p, c := newPlugin(job("", 0), bc.Pod, bc.Node)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- p.PreBind(ctx, bc) }()
	require.Eventually(t, func() bool { return bc.WaitingFor().For == "the Job to complete" }, 10*time.Second, time.Millisecond)

	require.NoError(t, c.Status().Update(ctx, job(batchv1.JobComplete, 0)))
	p.h.Changes.Changed(framework.RefTo(&batchv1.Job{}, "shop", "migrate"))
	assert.NoError(t, <-done)
}
