// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/prebind/prebind/test/gen"
)

// scene contains a cache, an API server, and a wait for a label of a pod.
type scene struct {
	cached, live client.Client
	h            Handle
	bc           *BindContext
	looks        int
	result       chan error
}

func newScene(objects ...client.Object) *scene {
	build := func() client.Client {
		b := fake.NewClientBuilder().WithScheme(scheme.Scheme)
		for _, o := range objects {
			b.WithObjects(o.DeepCopyObject().(client.Object)) //nolint:forcetypeassert,errcheck // It is a copy.
		}
		return b.Build()
	}
	s := &scene{cached: build(), live: build(), bc: &BindContext{}, result: make(chan error, 1)}
	s.h = Handle{Cached: s.cached, Live: s.live, Changes: NewHub(), Clock: clock.RealClock{}}
	return s
}

// wait waits up to a minute for the label go of the pod a. The label no is final.
func (s *scene) wait(ctx context.Context) {
	until := s.h.Clock.Now().Add(time.Minute)
	go func() {
		s.result <- Await(ctx, s.h, s.bc, func(ctx context.Context, reader Reader) (Waiting, error) {
			s.looks++
			pod, err := Get(ctx, reader, &corev1.Pod{}, "default", "a")
			about := RefTo(&corev1.Pod{}, "default", "a").Object()
			switch {
			case err != nil:
				return Waiting{}, err
			case pod == nil:
				return Waiting{}, Refuse(about, "there is no pod")
			case pod.Labels["go"] != "":
				return Waiting{}, nil
			case !s.h.Clock.Now().Before(until):
				return Waiting{}, Refuse(about, "the time is over")
			}
			return Waiting{Object: about, For: "the label", Until: until}, nil
		})
	}()
	synctest.Wait()
}

func (s *scene) ended() (bool, error) {
	synctest.Wait()
	select {
	case err := <-s.result:
		return true, err
	default:
		return false, nil
	}
}

func (s *scene) changed() { s.h.Changes.Changed(RefTo(&corev1.Pod{}, "default", "a")) }

func TestAwait(t *testing.T) {
	pod := func(o ...gen.PodOption) *corev1.Pod { return gen.Pod("a", o...) }
	ready := pod(gen.Label("go", "yes"))
	set := func(t *testing.T, c client.Client) {
		t.Helper()
		require.NoError(t, c.Delete(t.Context(), pod()))
		require.NoError(t, c.Create(t.Context(), ready.DeepCopy()))
	}
	synctest.Test(t, func(t *testing.T) {
		s := newScene(pod())
		s.wait(t.Context())
		ended, err := s.ended()
		require.False(t, ended, "%v", err)
		assert.Equal(t, "the label", s.bc.ReportedWait().For, "Await reports the wait")
		s.h.Changes.Changed(RefTo(&corev1.Pod{}, "default", "b"))
		synctest.Wait()
		assert.Equal(t, 1, s.looks, "Await looks again only if an object changes that the look has read")
		set(t, s.cached)
		s.changed()
		ended, err = s.ended()
		assert.True(t, ended, "Await looks immediately")
		require.NoError(t, err)
		assert.Empty(t, s.h.Changes.subs, "the subscription ends")
	})
	synctest.Test(t, func(t *testing.T) {
		s := newScene(pod())
		require.NoError(t, s.cached.Delete(t.Context(), pod()))
		s.wait(t.Context())
		ended, err := s.ended()
		require.False(t, ended, "the cache alone does not end the wait: %v", err)
		assert.Equal(t, 2, s.looks)
		require.NoError(t, s.live.Delete(t.Context(), pod()))
		s.changed()
		ended, err = s.ended()
		assert.True(t, ended)
		assert.True(t, IsKind(err, KindRefuse), "the API server confirms the error: %v", err)
	})
	synctest.Test(t, func(t *testing.T) {
		s := newScene(pod())
		s.wait(t.Context())
		set(t, s.live)
		<-time.After(time.Minute)
		ended, err := s.ended()
		assert.True(t, ended, "Await looks again at Waiting.Until")
		require.NoError(t, err, "the live look counts, because the event can be late")
	})
	synctest.Test(t, func(t *testing.T) {
		s := newScene(pod())
		over := errors.New("over")
		ctx, cancel := context.WithCancelCause(t.Context())
		s.wait(ctx)
		cancel(over)
		ended, err := s.ended()
		assert.True(t, ended)
		require.ErrorIs(t, err, over, "Await returns the cause of the context")
	})
}

// Every object of the kind in the namespace wakes a look that lists.
func TestAwait_List(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene()
		go func() {
			s.result <- Await(t.Context(), s.h, s.bc, func(ctx context.Context, reader Reader) (Waiting, error) {
				var jobs batchv1.JobList
				err := reader.List(ctx, &jobs, client.InNamespace("shop"))
				if err != nil || len(jobs.Items) > 0 {
					return Waiting{}, err
				}
				s.looks++
				return Waiting{For: "a Job"}, nil
			})
		}()
		synctest.Wait()
		s.h.Changes.Changed(RefTo(&batchv1.Job{}, "other", "x"))
		synctest.Wait()
		assert.Equal(t, 1, s.looks, "an object in another namespace does not wake the look")
		job := &batchv1.Job{}
		job.Namespace, job.Name = "shop", "x"
		require.NoError(t, s.cached.Create(t.Context(), job))
		s.h.Changes.Changed(RefTo(job, "shop", "x"))
		ended, err := s.ended()
		assert.True(t, ended)
		require.NoError(t, err)
	})
}

func TestWhereaboutsOf(t *testing.T) {
	pod := func(o ...gen.PodOption) *corev1.Pod { return gen.Pod("a", append(o, gen.UID("1"))...) }
	bound := func(node string) *corev1.Pod {
		p := pod()
		p.Spec.NodeName = node
		return p
	}
	leaving := bound("node-a")
	gen.Terminating()(&leaving.ObjectMeta)
	unbound := pod()
	gen.Terminating()(&unbound.ObjectMeta)
	cases := map[string]struct {
		reason string
		pod    *corev1.Pod
		want   Whereabouts
	}{
		"Pending":   {reason: "the pod can still be bound", pod: pod(), want: Pending},
		"Here":      {reason: "the pod is bound to the node", pod: bound("node-a"), want: BoundHere},
		"Elsewhere": {reason: "the pod is bound to another node", pod: bound("node-b"), want: BoundElsewhere},
		"Gone":      {reason: "the pod does not exist", want: Gone},
		"Leaving":   {reason: "the pod can no longer be bound", pod: unbound, want: Gone},
		"Running":   {reason: "a terminating pod still runs", pod: leaving, want: BoundHere},
		"Replaced":  {reason: "another pod has the same name", pod: gen.Pod("a", gen.UID("2")), want: Replaced},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) { assert.Equal(t, tc.want, WhereaboutsOf(tc.pod, "1", "node-a"), tc.reason) })
	}
	assert.Equal(t, Pending, WhereaboutsOf(pod(), "1", ""), "a pending pod is not bound to a mark without a node")
}
