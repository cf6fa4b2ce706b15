// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package tasks

import (
	"testing"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prebind/prebind/policy/v1alpha1"
)

func TestStateOf(t *testing.T) {
	is := func(conditionType string) []v1alpha1.TaskCondition {
		return []v1alpha1.TaskCondition{{Type: conditionType, Status: metav1.ConditionTrue}}
	}
	cases := map[string]struct {
		reason     string
		deleted    *metav1.Time
		conditions []v1alpha1.TaskCondition
		attempts   []string
		want       string
	}{
		"Waiting":  {reason: "a bind waits for it", attempts: []string{"a-1"}, want: "waiting"},
		"Bound":    {reason: "no bind waits for it: the policy was stopped, or its timeout allowed the bind", want: "unneeded"},
		"Ready":    {reason: "the handler has done it", conditions: is(v1alpha1.TaskReady), want: "ready"},
		"Failed":   {reason: "Failed has precedence", conditions: append(is(v1alpha1.TaskReady), is(v1alpha1.TaskFailed)...), attempts: []string{"a-1"}, want: "failed"},
		"Deletion": {reason: "the handler has to undo it", deleted: &metav1.Time{}, want: "undoing"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			task := &v1alpha1.BindTask{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: tc.deleted}}
			task.Spec.Attempts, task.Status.Conditions = tc.attempts, tc.conditions
			assert.Equal(t, tc.want, stateOf(task), tc.reason)
		})
	}
}
