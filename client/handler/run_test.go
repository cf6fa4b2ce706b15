// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package handler

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
)

const (
	name = "example.com/test"
	// patience is the timeout of a wait. It matters only if something is stuck.
	patience = 30 * time.Second
)

// world is a handler that runs against an API server in memory, which does not check resource versions.
type world struct {
	*fake.FakeDynamicClient
	t *testing.T
	// cancel ends the run, and ended is closed after it.
	cancel context.CancelFunc
	ended  chan struct{}
}

// start runs the handler with these BindTasks, and returns when it watches them: the fake loses changes between its list and its watch.
func start(t *testing.T, h Handler, react func(*fake.FakeDynamicClient), tasks ...runtime.Object) *world {
	t.Helper()
	h.Name = name
	kinds := map[schema.GroupVersionResource]string{resource: "BindTaskList"}
	w := &world{FakeDynamicClient: fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds, tasks...), t: t, ended: make(chan struct{})}
	watching := make(chan struct{})
	closeOnce := sync.OnceFunc(func() { close(watching) })
	w.PrependWatchReactor("*", func(clienttesting.Action) (bool, watch.Interface, error) {
		events, err := w.Tracker().Watch(resource, "")
		closeOnce()
		return true, events, err
	})
	if react != nil {
		react(w.FakeDynamicClient)
	}
	ctx, cancel := context.WithCancel(t.Context())
	w.cancel = cancel
	go func() {
		defer close(w.ended)
		assert.NoError(t, run(ctx, w, h))
	}()
	t.Cleanup(w.end)
	receive(t, watching)
	return w
}

// end ends the run.
func (w *world) end() {
	w.cancel()
	receive(w.t, w.ended)
}

// task returns a BindTask without a status.
func task(taskName string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "policy.prebind.dev/v1alpha1", "kind": "BindTask",
		"metadata": map[string]any{"name": taskName, "uid": "uid-of-" + taskName},
		"spec": map[string]any{
			"policy": "images", "task": "prefetch", "handler": name, "retain": "WhilePodRuns", "nodeName": "node-a",
			"pod":        map[string]any{"namespace": "shop", "name": "web", "uid": "pod-1"},
			"parameters": map[string]any{"image": "nginx"},
		},
	}}
}

// deleted marks the BindTask as deleted, with the finalizers.
func deleted(u *unstructured.Unstructured, finalizers ...string) *unstructured.Unstructured {
	u = u.DeepCopy()
	u.SetDeletionTimestamp(&metav1.Time{Time: time.Unix(1, 0)})
	u.SetFinalizers(finalizers)
	return u
}

// update replaces the BindTask, as another client would.
func (w *world) update(u *unstructured.Unstructured) {
	w.t.Helper()
	require.NoError(w.t, w.Tracker().Update(resource, u, ""))
}

func (w *world) get(taskName string) (*unstructured.Unstructured, *object) {
	w.t.Helper()
	u, err := w.Resource(resource).Get(w.t.Context(), taskName, metav1.GetOptions{})
	require.NoError(w.t, err)
	o, err := decode(u)
	require.NoError(w.t, err)
	return u, o
}

// until waits until the BindTask satisfies the condition.
func (w *world) until(taskName string, satisfied func(*object) bool) *object {
	w.t.Helper()
	events, err := w.Resource(resource).Watch(w.t.Context(), metav1.ListOptions{})
	require.NoError(w.t, err)
	defer events.Stop()
	for {
		if _, o := w.get(taskName); satisfied(o) {
			return o
		}
		receive(w.t, events.ResultChan())
	}
}

// writes returns the number of writes of the handler.
func (w *world) writes() int {
	n := 0
	for _, action := range w.Actions() {
		if action.GetVerb() == "patch" {
			n++
		}
	}
	return n
}

func receive[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case value := <-from:
		return value
	case <-time.After(patience):
		t.Fatal("nothing happened in time")
	}
	panic("unreachable")
}

func is(condition string) func(*object) bool {
	return func(o *object) bool { return meta.IsStatusConditionTrue(o.Status.Conditions, condition) }
}

func noUndo(context.Context, *Task) error { return errors.New("unexpected call of Undo") }

func TestRun_Ready(t *testing.T) {
	var calls atomic.Int32
	got := make(chan *Task, 1)
	w := start(t, Handler{Undo: noUndo, Do: func(_ context.Context, task *Task) (Result, error) {
		calls.Add(1)
		got <- task
		return Ready(map[string]string{"cache": "hit"}), nil
	}}, nil, task("a"))
	o := w.until("a", is(typeReady))
	assert.Equal(t, &Task{
		Name: "a", UID: "uid-of-a", Policy: "images", Pod: Pod{Namespace: "shop", Name: "web", UID: "pod-1"}, NodeName: "node-a",
		Parameters: map[string]string{"image": "nginx"},
	}, receive(t, got))
	assert.Equal(t, []string{name}, o.Finalizers)
	assert.Equal(t, map[string]string{"cache": "hit"}, o.Status.Annotations)
	assert.False(t, o.Status.Conditions[0].LastTransitionTime.IsZero())
	assert.Equal(t, 2, w.writes(), "the finalizer and the result")
	list := w.Actions()[0].(clienttesting.ListAction) //nolint:errcheck // it panics
	assert.Equal(t, "spec.handler="+name, list.GetListRestrictions().Fields.String())

	u, _ := w.get("a")
	u.SetLabels(map[string]string{"changed": "true"})
	w.update(u)
	w.end()
	assert.EqualValues(t, 1, calls.Load(), "the step is done")
}

func TestRun_FinalizerBeforeDo(t *testing.T) {
	var w *world
	started, begun := make(chan struct{}), task("a")
	begun.SetFinalizers([]string{"example.com/other"})
	w = start(t, Handler{Undo: noUndo, Do: func(context.Context, *Task) (Result, error) {
		<-started
		_, o := w.get("a")
		assert.Equal(t, []string{"example.com/other", name}, o.Finalizers)
		return Ready(nil), nil
	}}, nil, begun)
	close(started)
	w.until("a", is(typeReady))
}

func TestRun_WithoutUndo(t *testing.T) {
	w := start(t, Handler{Do: func(context.Context, *Task) (Result, error) { return Ready(nil), nil }}, nil,
		task("a"), deleted(task("b"), name))
	assert.Empty(t, w.until("a", is(typeReady)).Finalizers)
	w.until("b", func(o *object) bool { return len(o.Finalizers) == 0 })
	assert.Equal(t, 2, w.writes(), "the result of one, and the finalizer of the other, which an earlier version of the handler wrote")
}

func TestRun_Waiting(t *testing.T) {
	calls := 0
	w := start(t, Handler{Undo: noUndo, Do: func(context.Context, *Task) (Result, error) {
		calls++
		switch calls {
		case 1, 2:
			return Waiting("the pull", 0), nil
		case 3:
			return Waiting("the check", time.Millisecond), nil
		}
		return Ready(nil), nil
	}}, nil, task("a"))
	w.until("a", is(typeReady))
	w.end()
	assert.Equal(t, 4, calls)
	assert.Equal(t, 4, w.writes(), "the finalizer, two messages, and the result")
}

func TestRun_Failed(t *testing.T) {
	w := start(t, Handler{Undo: noUndo, Do: func(context.Context, *Task) (Result, error) {
		return Failed("InvalidImageName", strings.Repeat("é", 2000)), nil
	}}, nil, task("a"))
	failed := meta.FindStatusCondition(w.until("a", is(typeFailed)).Status.Conditions, typeFailed)
	assert.Equal(t, "InvalidImageName", failed.Reason)
	assert.Equal(t, strings.Repeat("é", 1023)+"…", failed.Message, "the API accepts 1024 characters")
}

func TestRun_RepeatsAfterErrors(t *testing.T) {
	do, undo := 0, 0
	w := start(t, Handler{
		Do: func(context.Context, *Task) (Result, error) {
			if do++; do < 3 {
				return Result{}, errors.New("no connection")
			}
			return Ready(nil), nil
		},
		Undo: func(context.Context, *Task) error {
			if undo++; undo < 3 {
				return errors.New("no connection")
			}
			return nil
		},
	}, nil, task("a"), deleted(task("b"), name))
	w.until("a", is(typeReady))
	w.until("b", func(o *object) bool { return len(o.Finalizers) == 0 })
	w.end()
	assert.Equal(t, []int{3, 3}, []int{do, undo})
}

// TestRun_RepeatsAfterConflicts checks that a write that another client was ahead of is repeated, with the call.
func TestRun_RepeatsAfterConflicts(t *testing.T) {
	var calls, conflicts atomic.Int32
	seventh := task("a")
	seventh.SetResourceVersion("7")
	w := start(t, Handler{Undo: noUndo, Do: func(context.Context, *Task) (Result, error) {
		calls.Add(1)
		return Ready(nil), nil
	}}, func(client *fake.FakeDynamicClient) {
		client.PrependReactor("patch", "bindtasks", func(action clienttesting.Action) (bool, runtime.Object, error) {
			patch := string(action.(clienttesting.PatchAction).GetPatch()) //nolint:errcheck // it panics
			assert.Contains(t, patch, `"resourceVersion":"7"`)
			conflict := action.GetSubresource() == "status" && conflicts.Add(1) == 1
			return conflict, nil, apierrors.NewConflict(resource.GroupResource(), "a", errors.New("changed"))
		})
	}, seventh)
	w.until("a", is(typeReady))
	assert.EqualValues(t, 2, calls.Load())
}

// TestRun_Undo checks that a task is undone that is deleted while Do waits, and when the handler does not run.
func TestRun_Undo(t *testing.T) {
	undone := make(chan string, 10)
	w := start(t, Handler{
		Do: func(context.Context, *Task) (Result, error) { return Waiting("the pull", time.Hour), nil },
		Undo: func(_ context.Context, task *Task) error {
			undone <- task.Name
			return nil
		},
	}, nil, task("waiting"), deleted(task("earlier"), "example.com/other", name), deleted(task("untouched"), "example.com/other"))
	assert.Equal(t, "earlier", receive(t, undone))
	w.until("earlier", func(o *object) bool { return len(o.Finalizers) == 1 && o.Finalizers[0] == "example.com/other" })
	w.until("waiting", func(o *object) bool { return len(o.Status.Conditions) == 1 })
	u, _ := w.get("waiting")
	w.update(deleted(u, u.GetFinalizers()...))
	assert.Equal(t, "waiting", receive(t, undone))
	w.until("waiting", func(o *object) bool { return len(o.Finalizers) == 0 })
	w.end()
	assert.Empty(t, undone, "a task that the handler did not begin is not undone")
}

// TestRun_SameName checks that Do is called for a task that was created again, when the watch missed the deletion.
func TestRun_SameName(t *testing.T) {
	calls := make(chan string, 10)
	w := start(t, Handler{Undo: noUndo, Do: func(_ context.Context, task *Task) (Result, error) {
		calls <- string(task.UID)
		return Ready(nil), nil
	}}, nil, task("a"))
	w.until("a", is(typeReady))
	again := task("a")
	again.SetUID("second")
	w.update(again)
	assert.Equal(t, []string{"uid-of-a", "second"}, []string{receive(t, calls), receive(t, calls)})
}

// TestRun_Concurrency checks that calls for other tasks do not wait for a slow one, and that the calls for one task do.
func TestRun_Concurrency(t *testing.T) {
	slow, finish := make(chan struct{}, 10), make(chan struct{})
	var mu sync.Mutex
	running := map[string]bool{}
	enter := func(task *Task, in bool) {
		mu.Lock()
		defer mu.Unlock()
		assert.NotEqual(t, in, running[task.Name], "two calls for one task")
		running[task.Name] = in
	}
	w := start(t, Handler{
		Workers: 2,
		Do: func(_ context.Context, task *Task) (Result, error) {
			enter(task, true)
			defer enter(task, false)
			if task.Name == "slow" {
				slow <- struct{}{}
				<-finish
			}
			return Ready(nil), nil
		},
		Undo: func(_ context.Context, task *Task) error {
			enter(task, true)
			enter(task, false)
			return nil
		},
	}, nil, task("slow"), task("a"), task("b"))
	receive(t, slow)
	w.until("a", is(typeReady))
	w.until("b", is(typeReady))
	u, _ := w.get("slow")
	w.update(deleted(u, name))
	close(finish)
	w.until("slow", func(o *object) bool { return len(o.Finalizers) == 0 })
}

func TestRun_EndsAfterTheLastCall(t *testing.T) {
	begun := make(chan struct{})
	var returned atomic.Bool
	w := start(t, Handler{Do: func(ctx context.Context, _ *Task) (Result, error) {
		close(begun)
		<-ctx.Done()
		returned.Store(true)
		return Result{}, ctx.Err()
	}}, nil, task("a"))
	receive(t, begun)
	w.end()
	assert.True(t, returned.Load())
}

func TestRun_Invalid(t *testing.T) {
	assert.Error(t, run(t.Context(), nil, Handler{Name: name}))
	assert.Error(t, run(t.Context(), nil, Handler{Name: name, Workers: -1, Do: func(context.Context, *Task) (Result, error) { return Ready(nil), nil }}))
}

func TestTask_OwnerReference(t *testing.T) {
	want := metav1.OwnerReference{APIVersion: "policy.prebind.dev/v1alpha1", Kind: "BindTask", Name: "a", UID: "u"}
	assert.Equal(t, want, (&Task{Name: "a", UID: "u"}).OwnerReference())
}

// The first list is not from a cache of the API server, which can have a BindTask that another process has undone.
func TestRun_FirstList(t *testing.T) {
	versions := make(chan string, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case versions <- r.URL.Query().Get("resourceVersion"):
		default: // It is not the first.
		}
		http.NotFound(w, r)
	}))
	defer server.Close()
	ended := make(chan error, 1)
	go func() {
		ended <- Run(ctx, &rest.Config{Host: server.URL}, Handler{Name: name, Do: func(context.Context, *Task) (Result, error) { return Ready(nil), nil }})
	}()
	assert.Empty(t, receive(t, versions))
	cancel()
	require.NoError(t, receive(t, ended))
}

func TestLimit(t *testing.T) {
	assert.Equal(t, "device \ufffd", limit("device \xff\xfe"), "the API server would replace it, and each call would be a write")
}
