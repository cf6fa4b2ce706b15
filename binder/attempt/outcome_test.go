// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package attempt

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/gen"
)

func TestOutcomeOf(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	bind := allowedBind{pod: "pod-1", node: "node-a", attempt: "mine", since: now}
	pod := func(options ...gen.PodOption) *corev1.Pod {
		return gen.Pod("pod", append([]gen.PodOption{gen.UID("pod-1")}, options...)...)
	}
	tests := map[string]struct {
		reason string
		live   *corev1.Pod
		after  time.Duration
		want   outcome
	}{
		"Gone":      {reason: "no pod uses the writes", live: nil, want: outcomeNotBound},
		"Recreated": {reason: "another pod has the name", live: gen.Pod("pod", gen.UID("pod-2")), want: outcomeNotBound},
		"RecreatedAndBound": {
			reason: "another pod does not use the writes",
			live:   gen.Pod("pod", gen.UID("pod-2"), gen.BoundTo("node-a")), want: outcomeNotBound,
		},
		"Bound":          {reason: "by us", live: pod(gen.BoundTo("node-a"), gen.Annotation(framework.AttemptAnnotation, "mine")), want: outcomeBound},
		"BoundByOther":   {reason: "an attempt of another replica owns the writes", live: pod(gen.BoundTo("node-a"), gen.Annotation(framework.AttemptAnnotation, "other")), want: outcomeBoundByOther},
		"BoundWithout":   {reason: "another client bound the pod, which uses the writes", live: pod(gen.BoundTo("node-a")), want: outcomeBoundByOther},
		"BoundElsewhere": {reason: "the pod is on another node", live: pod(gen.BoundTo("node-b"), gen.Annotation(framework.AttemptAnnotation, "mine")), want: outcomeNotBound},
		"Pending":        {reason: "the API server may execute the bind", live: pod(), after: framework.BindSettles, want: outcomePending},
		"PendingTooLong": {reason: "the API server has ended the request", live: pod(), after: framework.BindSettles + 1, want: outcomeNotBound},
		"Terminating":    {reason: "the API server rejects the bind of a terminating pod", live: pod(gen.Terminating()), want: outcomeNotBound},
		"BoundAndTerminating": {
			reason: "a bound pod uses the writes until it is gone",
			live:   pod(gen.BoundTo("node-a"), gen.Annotation(framework.AttemptAnnotation, "mine"), gen.Terminating()), want: outcomeBound,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tc.want, outcomeOf(bind, tc.live, now.Add(tc.after)), tc.reason)
		})
	}
}
