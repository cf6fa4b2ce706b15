// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package assembly

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/prebind/prebind/binder/framework"
)

// events records the calls of a handler.
type events []string

func (e *events) handler() toolscache.ResourceEventHandler {
	name := func(o any) string {
		pod, ok := o.(*corev1.Pod)
		if !ok {
			return fmt.Sprintf("%T", o)
		}
		return pod.Name + "@" + pod.ResourceVersion
	}
	return toolscache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(o any, initial bool) {
			if initial {
				*e = append(*e, "list "+name(o))
			} else {
				*e = append(*e, "add "+name(o))
			}
		},
		UpdateFunc: func(before, after any) { *e = append(*e, "update "+name(before)+" "+name(after)) },
		DeleteFunc: func(o any) { *e = append(*e, "delete "+name(o)) },
	}
}

// take returns the calls since the last take.
func (e *events) take() []string {
	all := *e
	*e = nil
	return all
}

func podAt(name, version string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, ResourceVersion: version, Labels: map[string]string{"a": "b"}}}
}

// The informer calls handlers as that of client-go does, and the store has the object before.
func TestInformer(t *testing.T) {
	i := newInformer(framework.Selection{Example: &corev1.Pod{}, Transform: func(o any) (any, error) {
		pod, ok := o.(*corev1.Pod)
		require.True(t, ok)
		pod = pod.DeepCopy()
		pod.Labels = nil
		return pod, nil
	}}, nil)
	var got events
	i.AddEventHandler(got.handler())

	assert.False(t, i.HasSynced())
	require.NoError(t, i.Replace([]any{podAt("a", "1"), podAt("b", "1"), podAt("c", "1")}, "1"))
	assert.True(t, i.HasSynced())
	assert.Equal(t, []string{"list a@1", "list b@1", "list c@1"}, got.take())
	stored, ok, err := i.store.GetByKey("default/a")
	require.NoError(t, err)
	require.True(t, ok)
	pod, ok := stored.(*corev1.Pod)
	require.True(t, ok)
	assert.Nil(t, pod.Labels, "transformed")

	require.NoError(t, i.Add(podAt("d", "2")))
	require.NoError(t, i.Update(podAt("a", "3")))
	require.NoError(t, i.Delete(podAt("b", "4")))
	require.NoError(t, i.Delete(podAt("b", "4")), "it is gone already")
	assert.Equal(t, []string{"add d@2", "update a@1 a@3", "delete b@1"}, got.take())

	require.NoError(t, i.Replace([]any{podAt("a", "3"), podAt("d", "5"), podAt("e", "5")}, "5"))
	assert.Equal(t, []string{"update d@2 d@5", "add e@5", "delete c@1"}, got.take(), "a is unchanged, and c was deleted before")

	var late events
	i.AddEventHandler(late.handler())
	assert.ElementsMatch(t, []string{"list a@3", "list d@5", "list e@5"}, late.take())
	require.NoError(t, i.Delete(podAt("e", "6")))
	assert.Equal(t, []string{"delete e@5"}, got.take())
	assert.Equal(t, []string{"delete e@5"}, late.take())
}

// A list without an answer ends.
func TestJudged_ListHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lists, _ := judged(&toolscache.ListWatch{ListWithContextFunc: func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}}, func(error) {})
		_, err := lists.ListWithContext(t.Context(), metav1.ListOptions{})
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

// A list that fails again and again is reported, because the objects are out of date.
func TestJudged_FailsAgain(t *testing.T) {
	var answers []error
	lists, _ := judged(&toolscache.ListWatch{ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
		return nil, apierrors.NewInternalError(errors.New("the conversion webhook does not answer"))
	}}, func(err error) { answers = append(answers, err) })
	for range maxFailures - 1 {
		_, err := lists.ListWithContext(t.Context(), metav1.ListOptions{})
		require.Error(t, err)
	}
	assert.Empty(t, answers, "the API server can be slow")
	_, err := lists.ListWithContext(t.Context(), metav1.ListOptions{})
	assert.Equal(t, []error{err}, answers)
}

// A streaming list that fails is repeated by the reflector without a list.
func TestJudged_StreamingListFailsAgain(t *testing.T) {
	var answers []error
	overloaded := apierrors.NewTooManyRequestsError("storage is initializing")
	lists, _ := judged(&toolscache.ListWatch{WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) {
		return nil, overloaded
	}}, func(err error) { answers = append(answers, err) })
	for range maxFailures {
		_, err := lists.WatchWithContext(t.Context(), metav1.ListOptions{SendInitialEvents: new(true)})
		require.ErrorIs(t, err, overloaded)
	}
	assert.Equal(t, []error{overloaded}, answers)
}

// The objects are those from before a rejection until a streaming list replaces them.
func TestJudged_StreamingListBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch.NewFake()
		s := &selection{}
		lists, replaced := judged(&toolscache.ListWatch{
			WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) { return w, nil },
		}, s.reject)
		s.Informer = newInformer(framework.Selection{Example: &corev1.Pod{}}, lists)
		s.replaced = replaced
		require.NoError(t, s.Replace(nil, "1"))
		s.reject(apierrors.NewForbidden(corev1.Resource("pods"), "", nil))
		go s.Run(t.Context())
		synctest.Wait()
		w.Add(podAt("a", "2"))
		synctest.Wait()
		require.Error(t, s.denied(), "the stream has not sent all objects")
		end := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "2", Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"}}}
		w.Action(watch.Bookmark, end)
		synctest.Wait()
		require.NoError(t, s.denied())
		assert.Equal(t, []string{"default/a"}, s.store.ListKeys())
	})
}

// A stream that breaks does not hide that lists fail again and again.
func TestJudged_StreamingListBreaks(t *testing.T) {
	s, overloaded := &selection{}, apierrors.NewInternalError(errors.New("etcd does not answer"))
	lists, replaced := judged(&toolscache.ListWatch{
		ListWithContextFunc:  func(context.Context, metav1.ListOptions) (runtime.Object, error) { return nil, overloaded },
		WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) { return watch.NewFake(), nil },
	}, s.reject)
	for range maxFailures {
		require.NoError(t, s.denied())
		_, err := lists.WatchWithContext(t.Context(), metav1.ListOptions{SendInitialEvents: new(true)})
		require.NoError(t, err)
		_, err = lists.ListWithContext(t.Context(), metav1.ListOptions{})
		require.ErrorIs(t, err, overloaded)
	}
	require.ErrorIs(t, s.denied(), overloaded)
	replaced()
	require.Error(t, s.denied(), "a list without a watch is not enough")
}

// Streams that end without an error also do not.
func TestJudged_StreamingListEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &selection{}
		lists, _ := judged(&toolscache.ListWatch{WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) {
			w := watch.NewFakeWithChanSize(1, false)
			w.Add(podAt("a", "1"))
			time.AfterFunc(time.Second, w.Stop)
			return w, nil
		}}, s.reject)
		s.Informer = newInformer(framework.Selection{Example: &corev1.Pod{}}, lists)
		go s.Run(t.Context())
		<-time.After(maxFailures * time.Second / 2)
		require.NoError(t, s.denied())
		<-time.After(maxFailures * time.Second)
		require.ErrorIs(t, s.denied(), errUnfinished)
	})
}
