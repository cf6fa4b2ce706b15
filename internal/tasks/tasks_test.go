// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package tasks

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/podstate"
	"github.com/prebind/prebind/internal/policy"
	"github.com/prebind/prebind/policy/v1alpha1"
	"github.com/prebind/prebind/test/fakeapi"
	"github.com/prebind/prebind/test/gen"
)

var began = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// bindAfter is the context of a bind that began some time ago.
func bindAfter(waited time.Duration) *framework.BindContext {
	return &framework.BindContext{
		Pod:  &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "web-uid"}},
		Node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}, Attempt: "attempt", Since: began, Now: began.Add(waited),
	}
}

func asked(name string, change ...func(*v1alpha1.BindTask)) Asked {
	a := Asked{Task: policy.Task{Policy: "p", Name: name, Handler: "example.com/" + name, Timeout: time.Minute}, name: name + "-1"}
	if len(change) > 0 {
		a.Found = &v1alpha1.BindTask{Spec: v1alpha1.BindTaskSpec{Attempts: []string{"attempt"}}}
		for _, c := range change {
			c(a.Found)
		}
	}
	return a
}

func has(condition string, status metav1.ConditionStatus, message string) func(*v1alpha1.BindTask) {
	return func(t *v1alpha1.BindTask) {
		t.Status.Conditions = append(t.Status.Conditions, v1alpha1.TaskCondition{Type: condition, Status: status, Message: message})
	}
}

func begun(t *v1alpha1.BindTask)   { t.Finalizers = []string{"example.com/a"} }
func deleted(t *v1alpha1.BindTask) { t.DeletionTimestamp = &metav1.Time{Time: began} }
func earlier(t *v1alpha1.BindTask) { t.Spec.Attempts = []string{"earlier"} }
func answered(t *v1alpha1.BindTask) {
	t.Status.Annotations = map[string]v1alpha1.AnnotationValue{"cache": "hit", "zone": "handler"}
}

var (
	ready  = has(v1alpha1.TaskReady, metav1.ConditionTrue, "")
	failed = has(v1alpha1.TaskFailed, metav1.ConditionTrue, "no space")
)

func allowing(a Asked) Asked { a.Allow = true; return a }

func TestDecide(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		asked  []Asked
		waited time.Duration
		dryRun bool

		verdict        policy.Verdict
		message        string
		annotations    map[string]string
		waived, writes []string
	}{
		"New": {
			reason: "PreBind creates it", asked: []Asked{asked("a")},
			verdict: policy.Waiting, message: "waiting for handler example.com/a to begin BindTask a-1", writes: []string{"create BindTask a-1 for example.com/a"},
		},
		"Created": {
			reason: "no handler has seen it", asked: []Asked{asked("a", func(*v1alpha1.BindTask) {})},
			verdict: policy.Waiting, message: "waiting for handler example.com/a to begin BindTask a-1",
		},
		"Progress": {
			reason: "the handler says what it does", asked: []Asked{asked("a", has(v1alpha1.TaskReady, metav1.ConditionFalse, "3 of 5 layers"))},
			verdict: policy.Waiting, message: "waiting for task a of example.com/a: 3 of 5 layers",
		},
		"Ready": {
			reason: "the policy's own annotation counts", asked: []Asked{asked("a", ready, answered)},
			verdict: policy.Allowed, annotations: map[string]string{"p.policy.prebind.dev/cache": "hit", "p.policy.prebind.dev/zone": "policy"},
		},
		"Failed": {
			reason: "it takes precedence over Ready, and nothing that waits can help", asked: []Asked{asked("b", begun), asked("a", ready, failed)},
			verdict: policy.Rejected, message: "task a of example.com/a failed: no space",
		},
		"InvalidKey": {
			reason: "the handler made a mistake, not Prebind", asked: []Asked{asked("a", ready, func(t *v1alpha1.BindTask) { t.Status.Annotations = map[string]v1alpha1.AnnotationValue{"x y": ""} })},
			verdict: policy.Rejected, message: `task a of example.com/a: the annotation key "x y" in its status is not valid`,
		},
		"TwoWaiting": {
			reason: "the message counts the others", asked: []Asked{asked("a", begun), asked("b", begun)},
			verdict: policy.Waiting, message: "waiting for handler example.com/a to finish BindTask a-1 (and 1 more)",
		},
		"TimedOut": {
			reason: "the handler did not answer", asked: []Asked{asked("a", begun)}, waited: time.Minute,
			verdict: policy.TimedOut, message: "still waiting for handler example.com/a to finish BindTask a-1 (timed out after 1m0s)",
		},
		"TimedOutAllow": {
			reason: "the policy goes on", asked: []Asked{allowing(asked("a", begun))}, waited: time.Minute,
			verdict: policy.Allowed, waived: []string{"a"}, annotations: map[string]string{"p.policy.prebind.dev/zone": "policy"},
		},
		"Late": {
			reason: "a task that is ready does not time out", asked: []Asked{asked("a", ready)}, waited: time.Hour,
			verdict: policy.Allowed, annotations: map[string]string{"p.policy.prebind.dev/zone": "policy"},
		},
		"Undoing": {
			reason: "the handler must finish before it begins again", asked: []Asked{asked("a", deleted, ready)},
			verdict: policy.Waiting, message: "waiting for handler example.com/a to undo an earlier attempt for BindTask a-1",
		},
		"Earlier": {
			reason: "the bind joins the BindTask of another attempt first", asked: []Asked{asked("a", earlier, failed)},
			verdict: policy.Waiting, message: "waiting for handler example.com/a to finish BindTask a-1", writes: []string{"create BindTask a-1 for example.com/a"},
		},
		"DryRun": {
			reason: "a dry run has no attempt of its own", asked: []Asked{asked("a", earlier, ready)}, dryRun: true,
			verdict: policy.Allowed, annotations: map[string]string{"p.policy.prebind.dev/zone": "policy"},
		},
		"TooMany": {
			reason: "the cost of a bind is bounded", asked: []Asked{asked("1"), asked("2"), asked("3"), asked("4"), asked("5"), asked("6"), asked("7"), asked("8"), asked("9")},
			verdict: policy.Rejected, message: "the policies need more than 8 tasks for the bind",
		},
		"LongMessage": {
			reason: "a handler is not trusted", asked: []Asked{asked("a", has(v1alpha1.TaskReady, metav1.ConditionFalse, strings.Repeat("x", 5000)+"\n"))},
			verdict: policy.Waiting, message: "waiting for task a of example.com/a: " + strings.Repeat("x", 984) + "…",
		},
	} {
		t.Run(name, func(t *testing.T) {
			bc := bindAfter(tc.waited)
			bc.DryRun = tc.dryRun
			r := policy.Result{Policy: "p", Verdict: policy.Allowed, Annotations: map[string]string{"p.policy.prebind.dev/zone": "policy"}}
			for _, a := range tc.asked {
				r.Tasks = append(r.Tasks, a.Task)
			}
			r.Needs = len(r.Tasks)
			audited := r
			audited.Audit = true
			decided, writes := Decide(bc, []policy.Result{audited, r}, tc.asked)
			assert.Equal(t, audited, decided[0], "a policy in mode Audit has no tasks")
			got := decided[1]
			assert.Equal(t, tc.verdict, got.Verdict, tc.reason)
			assert.Equal(t, tc.message, got.Message, tc.reason)
			assert.LessOrEqual(t, len(got.Message), policy.MaxMessage, tc.reason)
			assert.Equal(t, tc.waived, got.Waived, tc.reason)
			assert.Equal(t, tc.writes, writes, tc.reason)
			if got.Verdict == policy.Allowed {
				assert.Equal(t, tc.annotations, got.Annotations, tc.reason)
			}
			if got.Verdict == policy.Waiting {
				assert.Equal(t, began.Add(time.Minute), got.Until, "no object can end the wait of a handler that is gone")
			}
		})
	}
}

// The tasks of a policy that still waits count, so that no other task begins for nothing.
func TestDecide_TasksOfAWaitingPolicy(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		err    error
		needs  int
		want   policy.Verdict
		writes bool
	}{
		"TooMany":   {reason: "the waits do not change the number of tasks", needs: MaxTasks, want: policy.Rejected},
		"Preparing": {reason: "its match conditions may exclude the bind", err: policy.ErrPreparing, needs: MaxTasks, want: policy.Allowed},
		"Few":       {reason: "all tasks may begin", err: policy.ErrPreparing, needs: MaxTasks - 1, want: policy.Waiting, writes: true},
	} {
		t.Run(name, func(t *testing.T) {
			a := asked("a")
			decided, writes := Decide(bindAfter(0), []policy.Result{
				{Policy: "p", Verdict: policy.Allowed, Needs: 1, Tasks: []policy.Task{a.Task}}, {Policy: "q", Verdict: policy.Waiting, Needs: tc.needs, Err: tc.err},
			}, []Asked{a})
			assert.Equal(t, tc.want, decided[0].Verdict, tc.reason)
			assert.Equal(t, tc.writes, len(writes) > 0, tc.reason)
		})
	}
}

func TestNameOf(t *testing.T) {
	of := func(change func(*policy.Task, *framework.BindContext)) string {
		bc := bindAfter(0)
		task := asked("a").Task
		change(&task, bc)
		return nameOf(task, bc)
	}
	base := of(func(_ *policy.Task, bc *framework.BindContext) { bc.Attempt = "other" })
	assert.Equal(t, base, of(func(*policy.Task, *framework.BindContext) {}), "every replica finds it")
	for what, change := range map[string]func(*policy.Task, *framework.BindContext){
		"policy":                 func(task *policy.Task, _ *framework.BindContext) { task.Policy = "q" },
		"task":                   func(task *policy.Task, _ *framework.BindContext) { task.Name = "b" },
		"handler after an edit":  func(task *policy.Task, _ *framework.BindContext) { task.Handler = "example.com/b" },
		"lifetime after an edit": func(task *policy.Task, _ *framework.BindContext) { task.Retain = v1alpha1.RetainUntilBound },
		"pod":                    func(_ *policy.Task, bc *framework.BindContext) { bc.Pod.UID = "2" },
		"node":                   func(_ *policy.Task, bc *framework.BindContext) { bc.Node.Name = "node-b" },
		"node that was replaced": func(_ *policy.Task, bc *framework.BindContext) { bc.Node.UID = "2" },
	} {
		assert.NotEqual(t, base, of(change), "each %s has its own", what)
	}
}

// Tidy keeps up with pods that end: it reads nodes, and not each pod.
func TestTidy(t *testing.T) {
	server := fakeapi.New()
	const nodes, pods = 600, 3
	put := func(node, pod int, uid string) string {
		name := fmt.Sprintf("task-of-%s", uid)
		server.Put(&v1alpha1.BindTask{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: v1alpha1.BindTaskSpec{
			NodeName: fmt.Sprintf("node-%d", node), Pod: v1alpha1.PodReference{Namespace: "default", Name: fmt.Sprintf("web-%d", pod), UID: types.UID(uid)},
		}})
		return name
	}
	for node := range nodes {
		for pod := range pods {
			put(node, pod, fmt.Sprintf("gone-%d-%d", node, pod))
		}
	}
	kept := put(1, 0, "runs")
	server.Put(gen.Pod("web-0", gen.UID("runs"), gen.BoundTo("node-1")))
	waiting := &v1alpha1.BindTask{ObjectMeta: metav1.ObjectMeta{Name: "waiting", UID: "waiting"}, Spec: v1alpha1.BindTaskSpec{
		NodeName: "node-1", Attempts: []string{"r-1"}, Pod: v1alpha1.PodReference{Namespace: "default", Name: "waits", UID: "waits"},
	}}
	server.Put(waiting)
	put(1, 1, "ended")
	ended := gen.Pod("web-1", gen.UID("ended"), gen.BoundTo("node-1"))
	ended.Status.Phase = corev1.PodSucceeded
	server.Put(ended)

	api := server.Connect()
	s := NewStore(framework.Handle{Cached: server.Cache(), Live: api, Writer: api})
	require.NoError(t, s.Tidy(t.Context()))
	assert.Len(t, fakeapi.All(server, &v1alpha1.BindTask{}), pods*(nodes-podstate.MaxVisits)+2, "the cost of a call is limited")
	assert.Equal(t, podstate.MaxVisits, server.Reads())
	outOfTime, cancel := context.WithCancel(t.Context())
	lists := 0
	api.Before = func(c fakeapi.Call) error {
		if c.Verb == "list" {
			lists++
		}
		if lists > 1 {
			cancel()
		}
		return outOfTime.Err()
	}
	require.NoError(t, s.Tidy(outOfTime), "a failure would fire PrebindSweepFailing")
	require.ErrorIs(t, s.Tidy(outOfTime), context.Canceled, "the API server does not answer")
	api.Before = nil
	require.NoError(t, s.Tidy(t.Context()))
	require.NoError(t, s.Tidy(t.Context()))
	left := fakeapi.All(server, &v1alpha1.BindTask{})
	require.Len(t, left, 2, "the next call continues")
	assert.Equal(t, kept, left[0].Name)
	assert.Equal(t, waiting.Name, left[1].Name, "its pod is not bound yet")
}

// A tenant can have many pods that wait. They cost the binds of others nothing.
func TestPostBind_ReadsTheTasksOfThePod(t *testing.T) {
	server := fakeapi.New()
	put := func(pod, task string, attempts ...string) {
		server.Put(&v1alpha1.BindTask{ObjectMeta: metav1.ObjectMeta{Name: task + "-of-" + pod, UID: types.UID(task + pod)}, Spec: v1alpha1.BindTaskSpec{
			NodeName: "node-1", Attempts: attempts, Pod: v1alpha1.PodReference{Namespace: "default", Name: pod, UID: types.UID(pod)},
		}})
	}
	for i := range 50 {
		put(fmt.Sprintf("waits-%d", i), "a", "r-1")
	}
	put("web", "a", "r-1", "s-1")
	put("web", "b", "r-1")
	put("runs", "a")
	cached, api := &fakeapi.Listing{Reader: server.Cache()}, server.Connect()
	s := NewStore(framework.Handle{Cached: cached, Live: api, Writer: api})
	m := framework.Mark{Pod: types.NamespacedName{Namespace: "default", Name: "web"}, PodUID: "web", Node: "node-1", Attempt: "r-1"}
	require.NoError(t, s.PostBind(t.Context(), m, nil))
	assert.Equal(t, 2, cached.Items)
	marks, err := s.Marks(t.Context())
	require.NoError(t, err)
	assert.Len(t, marks, 50, "both BindTasks of the pod are confirmed")
	assert.NotContains(t, marks, m)
}

// A handler that writes its answer at the same time does not keep a BindTask from being deleted.
func TestPreBindRollBack_Conflict(t *testing.T) {
	server := fakeapi.New()
	m := framework.Mark{Pod: types.NamespacedName{Namespace: "default", Name: "web"}, PodUID: "u", Node: "node-1", Attempt: "r-1"}
	server.Put(&v1alpha1.BindTask{ObjectMeta: metav1.ObjectMeta{Name: "task", UID: "task"}, Spec: v1alpha1.BindTaskSpec{
		NodeName: m.Node, Attempts: []string{m.Attempt}, Pod: v1alpha1.PodReference{Namespace: m.Pod.Namespace, Name: m.Pod.Name, UID: m.PodUID},
	}})
	api, deletions := server.Connect(), 0
	api.Before = func(c fakeapi.Call) error {
		if c.Verb != "delete" {
			return nil
		}
		if deletions++; deletions == 1 {
			return fakeapi.Conflict("BindTask", "task")
		}
		return nil
	}
	s := NewStore(framework.Handle{Cached: server.Cache(), Live: api, Writer: api})
	require.NoError(t, s.PreBindRollBack(t.Context(), m))
	assert.Equal(t, 2, deletions)
	assert.Empty(t, fakeapi.All(server, &v1alpha1.BindTask{}))
}

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
