// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/framework/frameworktest"
	"github.com/prebind/prebind/policy/v1alpha1"
	"github.com/prebind/prebind/test/gen"
)

const (
	withTask  = `tasks: [{name: prefetch, handler: example.com/prefetch, parameters: [{key: image, valueExpression: "'of ' + pod.metadata.name"}], retain: WhilePodRuns}]`
	untilBind = `tasks: [{name: prefetch, handler: example.com/prefetch, retain: UntilBound}]`
)

// task returns the only BindTask, or nil.
func (w *world) task() *v1alpha1.BindTask {
	w.t.Helper()
	var all v1alpha1.BindTaskList
	require.NoError(w.t, w.api.List(w.t.Context(), &all))
	require.LessOrEqual(w.t, len(all.Items), 1)
	if len(all.Items) == 0 {
		return nil
	}
	return &all.Items[0]
}

// answer writes a condition of the only BindTask, as its handler does.
func (w *world) answer(condition string, message string) {
	w.t.Helper()
	task := w.task()
	require.NotNil(w.t, task)
	task.Status.Conditions = []v1alpha1.TaskCondition{{Type: condition, Status: metav1.ConditionTrue, Message: message}}
	task.Status.Annotations = map[string]v1alpha1.AnnotationValue{"cache": "hit"}
	require.NoError(w.t, w.api.Status().Update(w.t.Context(), task))
	synctest.Wait()
}

func TestTasks_Ready(t *testing.T) {
	for retain, spec := range map[v1alpha1.Retain]string{v1alpha1.RetainWhilePodRuns: withTask, v1alpha1.RetainUntilBound: untilBind} {
		t.Run(string(retain), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, policyOf(t, "a", spec))
				bc := w.bind()
				call, last := w.start(bc)
				task := w.task()
				require.NotNil(t, task, "the bind has created it")
				assert.Equal(t, "example.com/prefetch", task.Spec.Handler)
				assert.Equal(t, v1alpha1.PodReference{Namespace: bc.Pod.Namespace, Name: "web", UID: bc.Pod.UID}, task.Spec.Pod)
				if retain == v1alpha1.RetainWhilePodRuns {
					assert.Equal(t, map[string]v1alpha1.ParameterValue{"image": "of web"}, task.Spec.Parameters)
				}
				marks, err := w.Marks(t.Context())
				require.NoError(t, err)
				require.Len(t, marks, 1, "a crash now is recovered")
				w.answer(v1alpha1.TaskReady, "")
				<-time.After(50 * time.Millisecond)
				require.NoError(t, ends(t, call), "the change of the status wakes the bind")
				assert.Equal(t, "hit", last.Annotations["a.policy.prebind.dev/cache"])
				assert.Len(t, w.server.Writes(), 2, "Prebind creates it, and the handler reports")

				bound := bc.Pod.DeepCopy()
				bound.Spec.NodeName = bc.Node.Name
				w.server.Put(bound)
				synctest.Wait() // The engine also calls PostBind.
				require.NoError(t, w.PostBind(t.Context(), marks[0], bound))
				assert.Len(t, w.server.Writes(), 3, "Prebind confirms it, or deletes it: its second write")
				marks, err = w.Marks(t.Context())
				require.NoError(t, err)
				assert.Empty(t, marks, "it is confirmed")
				if retain == v1alpha1.RetainUntilBound {
					assert.Nil(t, w.task(), "the bind has ended")
					return
				}
				require.NoError(t, w.Tidy(t.Context()))
				require.NotNil(t, w.task(), "the pod runs")
				bound.Status.Phase = corev1.PodSucceeded
				w.server.Put(bound)
				require.NoError(t, w.Tidy(t.Context()))
				assert.Nil(t, w.task(), "the pod has ended")
			})
		})
	}
}

// A handler that undoes an earlier attempt delays the next one on the same node.
func TestTasks_Undoing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, policyOf(t, "a", withTask))
		bc := w.bind()
		v := w.passes(bc)
		require.NoError(t, w.PreBind(t.Context(), bc))
		task := w.task()
		assert.Equal(t, []string{"create BindTask " + task.Name + " for example.com/prefetch"}, v.Writes)
		task.Finalizers = []string{"example.com/prefetch"}
		require.NoError(t, w.api.Update(t.Context(), task))
		require.NoError(t, w.PreBindRollBack(t.Context(), bc.Mark()))
		v = w.passes(bc)
		assert.Empty(t, v.Writes)
		assert.Equal(t, "handler example.com/prefetch to undo an earlier attempt for BindTask "+task.Name, v.Wait.For)
		task = w.task()
		task.Finalizers = nil
		require.NoError(t, w.api.Update(t.Context(), task))
		v = w.passes(bc)
		assert.NotEmpty(t, v.Writes, "the step begins again")
	})
}

// Attempts of several replicas rely on one BindTask: the pod can be bound by any of them. A conflict means that the cache is behind.
func TestTasks_Join(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, policyOf(t, "a", withTask))
		first := w.bind()
		w.passes(first)
		require.NoError(t, w.PreBind(t.Context(), first))
		behind := *first
		behind.Attempt = "second"
		require.True(t, frameworktest.IsKind(w.PreBind(t.Context(), &behind), framework.KindWait), "the BindTask exists")

		second := *first
		second.Attempt = "second"
		w.passes(&second)
		require.NoError(t, w.PreBind(t.Context(), &second))
		assert.Equal(t, []string{first.Attempt, "second"}, w.task().Spec.Attempts)
		third := second
		third.Attempt = "third"
		err := w.PreBind(t.Context(), &third)
		assert.True(t, frameworktest.IsKind(err, framework.KindWait), "%v: the BindTask has changed since the pass", err)
		marks, err := w.Marks(t.Context())
		require.NoError(t, err)
		assert.Equal(t, []framework.Mark{first.Mark(), second.Mark()}, marks)
		require.NoError(t, w.PreBindRollBack(t.Context(), second.Mark()))
		require.NotNil(t, w.task(), "the first attempt can have been allowed")
		assert.Equal(t, []string{first.Attempt}, w.task().Spec.Attempts)
		require.NoError(t, w.PreBindRollBack(t.Context(), second.Mark()), "it is idempotent")
		require.NotNil(t, w.task())
		w.answer(v1alpha1.TaskFailed, "no space")
		require.NoError(t, w.PreBindRollBack(t.Context(), second.Mark()))
		require.NotNil(t, w.task(), "the handler can have reported Ready before")
		require.NoError(t, w.PreBindRollBack(t.Context(), first.Mark()))
		assert.Nil(t, w.task(), "no attempt relies on it")
	})
}

// Policies in mode Audit create nothing.
func TestTasks_Audit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, policyOf(t, "a", withTask+"\nmode: Audit"))
		v := w.passes(w.bind(gen.Label("a", "b")))
		assert.Empty(t, v.Writes)
		assert.Equal(t, []string{"policy: BindPolicy a: audit: the bind would wait for 1 tasks, the first one prefetch of example.com/prefetch"}, v.Warnings)
	})
}
