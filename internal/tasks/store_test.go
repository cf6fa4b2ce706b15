// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package tasks

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/podstate"
	"github.com/prebind/prebind/policy/v1alpha1"
	"github.com/prebind/prebind/test/fakeapi"
	"github.com/prebind/prebind/test/gen"
)

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
	put(1, 1, "ended")
	ended := gen.Pod("web-1", gen.UID("ended"), gen.BoundTo("node-1"))
	ended.Status.Phase = corev1.PodSucceeded
	server.Put(ended)

	api := server.Connect()
	s := NewStore(framework.Handle{Cached: server.Cache(), Live: api, Writer: api})
	require.NoError(t, s.Tidy(t.Context()))
	assert.Len(t, fakeapi.All(server, &v1alpha1.BindTask{}), pods*(nodes-podstate.MaxVisits)+1, "the cost of a call is limited")
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
	require.Len(t, left, 1, "the next call continues")
	assert.Equal(t, kept, left[0].Name)
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
