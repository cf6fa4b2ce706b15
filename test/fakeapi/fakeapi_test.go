// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package fakeapi

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func podOf(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-of-" + name)}}
}

// TestWrites: every write has the effect, the version and the error that the real API server
// gives it.
func TestWrites(t *testing.T) {
	cases := map[string]struct {
		reason string
		write  func(c *Connection, pod *corev1.Pod) error
		is     func(error) bool
		// changes says that there is one write, and one event.
		changes bool
	}{
		"Create":        {reason: "there is none of this name", write: func(c *Connection, _ *corev1.Pod) error { return c.Create(t.Context(), podOf("new")) }, changes: true},
		"CreateAgain":   {reason: "there is one", write: func(c *Connection, pod *corev1.Pod) error { return c.Create(t.Context(), pod) }, is: apierrors.IsAlreadyExists},
		"Update":        {reason: "it is as the client read it", write: func(c *Connection, pod *corev1.Pod) error { return c.Update(t.Context(), labelled(pod)) }, changes: true},
		"UpdateNothing": {reason: "it is the same", write: func(c *Connection, pod *corev1.Pod) error { return c.Update(t.Context(), pod) }},
		"UpdateMissing": {reason: "there is none", write: func(c *Connection, _ *corev1.Pod) error { return c.Update(t.Context(), podOf("new")) }, is: apierrors.IsNotFound},
		"UpdateStale": {reason: "another client was faster", write: func(c *Connection, pod *corev1.Pod) error {
			pod.ResourceVersion = "1"
			return c.Update(t.Context(), labelled(pod))
		}, is: apierrors.IsConflict},
		"UpdateReplaced": {reason: "it is another pod of the name", write: func(c *Connection, pod *corev1.Pod) error {
			pod.UID = "2"
			pod.ResourceVersion = ""
			return c.Update(t.Context(), labelled(pod))
		}, is: apierrors.IsConflict},
		"Patch": {reason: "a merge patch that names the version", write: func(c *Connection, pod *corev1.Pod) error {
			return c.Patch(t.Context(), labelled(pod), client.MergeFromWithOptions(podVersion(pod), client.MergeFromWithOptimisticLock{}))
		}, changes: true},
		"PatchStale": {reason: "it names another one", write: func(c *Connection, pod *corev1.Pod) error {
			pod.ResourceVersion = "1"
			return c.Patch(t.Context(), labelled(pod), client.MergeFromWithOptions(podVersion(pod), client.MergeFromWithOptimisticLock{}))
		}, is: apierrors.IsConflict},
		"PatchTestFails": {reason: "a test in a JSON patch is a precondition", write: func(c *Connection, pod *corev1.Pod) error {
			return c.Patch(t.Context(), pod, client.RawPatch(types.JSONPatchType, []byte(`[{"op":"test","path":"/metadata/uid","value":"x"}]`)))
		}, is: apierrors.IsInvalid},
		"Delete": {reason: "it is the one", write: func(c *Connection, pod *corev1.Pod) error {
			return c.Delete(t.Context(), pod, client.Preconditions{UID: &pod.UID})
		}, changes: true},
		"DeleteReplaced": {reason: "it is another one", write: func(c *Connection, pod *corev1.Pod) error {
			return c.Delete(t.Context(), pod, client.Preconditions{UID: new(types.UID)})
		}, is: apierrors.IsConflict},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s, events := New(podOf("web")), 0
			s.OnChange(func(client.Object, bool) { events++ })
			pod, ok := Get(s, podOf("web"))
			require.True(t, ok)
			err := tc.write(s.Connect(), pod)
			if tc.is != nil {
				assert.True(t, tc.is(err), "%s: %v", tc.reason, err)
			} else {
				require.NoError(t, err, tc.reason)
			}
			if tc.changes {
				assert.Len(t, s.Writes(), 1, tc.reason)
				assert.Equal(t, 1, events, tc.reason)
			} else {
				assert.Empty(t, s.Writes(), tc.reason)
				assert.Zero(t, events, tc.reason)
			}
		})
	}
}

func labelled(pod *corev1.Pod) *corev1.Pod {
	pod = pod.DeepCopy()
	pod.Labels = map[string]string{"a": "b"}
	return pod
}

func podVersion(pod *corev1.Pod) *corev1.Pod { return pod.DeepCopy() }

// TestFinalizers: an object is removed with its last finalizer.
func TestFinalizers(t *testing.T) {
	pod := podOf("web")
	pod.Finalizers = []string{"example.com/a"}
	s := New(pod)
	c := s.Connect()
	require.NoError(t, c.Delete(t.Context(), pod))
	ending, ok := Get(s, pod)
	require.True(t, ok)
	require.NotNil(t, ending.DeletionTimestamp)
	ending.Finalizers = nil
	require.NoError(t, c.Update(t.Context(), ending))
	_, ok = Get(s, pod)
	assert.False(t, ok)
}

// TestReads: objects are copies, names are checked, and metadata can be asked for alone.
func TestReads(t *testing.T) {
	s := New(podOf("web"))
	c := s.Connect()
	pod := &corev1.Pod{}
	require.NoError(t, c.Get(t.Context(), client.ObjectKeyFromObject(podOf("web")), pod))
	pod.Name = "changed"
	_, ok := Get(s, podOf("web"))
	assert.True(t, ok, "clients share no memory with the server")
	assert.True(t, apierrors.IsNotFound(c.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "none"}, pod)))
	assert.ErrorContains(t, c.Get(t.Context(), client.ObjectKey{Name: "a/b"}, pod), "no client sends")
	partial := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}}
	require.NoError(t, c.Get(t.Context(), client.ObjectKeyFromObject(podOf("web")), partial))
	assert.Equal(t, types.UID("uid-of-web"), partial.UID)
	assert.Equal(t, 4, s.Reads())
}

// TestLists: in order, by selectors and indexes, in pages.
func TestLists(t *testing.T) {
	bound := podOf("b")
	bound.Spec.NodeName = "node-a"
	elsewhere := podOf("a")
	elsewhere.Namespace = "zoo"
	s := New(podOf("c"), bound, elsewhere, podOf("a"))
	require.NoError(t, s.IndexField(t.Context(), &corev1.Pod{}, "initial", func(o client.Object) []string { return []string{o.GetName()[:1]} }))
	s.PageSize(2)
	c := s.Connect()
	list := func(options ...client.ListOption) (names []string) {
		pods := &corev1.PodList{}
		require.NoError(t, c.List(t.Context(), pods, options...))
		for _, pod := range pods.Items {
			names = append(names, pod.Namespace+"/"+pod.Name)
		}
		return append(names, pods.Continue)
	}
	assert.Equal(t, []string{"default/a", "default/b", "default/c", "zoo/a", ""}, list())
	assert.Equal(t, []string{"default/a", "default/b", "default/b"}, list(client.Limit(500)), "no page is longer than the server's")
	assert.Equal(t, []string{"default/c", "zoo/a", ""}, list(client.Limit(500), client.Continue("default/b")))
	assert.Equal(t, []string{"default/b", ""}, list(client.InNamespace("default"), client.MatchingFields{"spec.nodeName": "node-a"}))
	assert.Equal(t, []string{"default/a", "zoo/a", ""}, list(client.MatchingFields{"initial": "a"}))
	assert.True(t, apierrors.IsBadRequest(c.List(t.Context(), &corev1.PodList{}, client.MatchingFields{"spec.hostname": "a"})))
}

// TestConnection: calls can fail before and after they have had their effect.
func TestConnection(t *testing.T) {
	s := New()
	c := s.Connect()
	boom := errors.New("boom")
	c.Before = func(call Call) error {
		assert.Equal(t, "create Pod web", call.String())
		return boom
	}
	require.ErrorIs(t, c.Create(t.Context(), podOf("web")), boom)
	assert.Empty(t, s.Writes())
	c.Before, c.After = nil, func(Call) error { return boom }
	require.ErrorIs(t, c.Create(t.Context(), podOf("web")), boom)
	assert.Len(t, s.Writes(), 1, "the answer was lost, the pod is there")
}

// TestClaims: a status is apart from the rest, valid, and says who made a reservation.
func TestClaims(t *testing.T) {
	s := New(&resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "gpu"}})
	c := s.Connect()
	claim, ok := Get(s, &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "gpu"}})
	require.True(t, ok)
	claim.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: "web", UID: "1"}}
	assert.True(t, apierrors.IsInvalid(c.Status().Update(t.Context(), claim)), "it is not allocated")
	claim.Status.Allocation = &resourcev1.AllocationResult{}
	require.NoError(t, c.Update(t.Context(), claim.DeepCopy()))
	assert.Empty(t, s.Writes(), "an update does not write the status")
	require.NoError(t, c.Status().Update(t.Context(), claim, client.FieldOwner("scheduler")))
	assert.Len(t, claim.Status.ReservedFor, 1)
	require.Len(t, claim.ManagedFields, 1)
	assert.Equal(t, "scheduler", claim.ManagedFields[0].Manager)
}
