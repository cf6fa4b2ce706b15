// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/prebind/prebind/test/cluster"
)

// starts observes the pods of a node in the order of the API server, and reports their status like a kubelet.
type starts struct {
	*bench

	mu sync.Mutex
	// starting and seen contain the names of pods. most is the maximum of starting.
	starting, seen map[string]bool
	most           int
}

// observe begins with a node without pods.
func (b *bench) observe(node string) *starts {
	b.t.Helper()
	s := &starts{bench: b, starting: map[string]bool{}, seen: map[string]bool{}}
	events, err := b.client.CoreV1().Pods(b.ns).Watch(b.t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	require.NoError(b.t, err)
	var reads sync.WaitGroup
	reads.Go(func() {
		for e := range events.ResultChan() {
			if pod, ok := e.Object.(*corev1.Pod); ok {
				s.note(pod, e.Type == watch.Deleted)
			}
		}
	})
	b.t.Cleanup(func() {
		events.Stop()
		reads.Wait()
	})
	return s
}

func (s *starts) note(pod *corev1.Pod, deleted bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if deleted || pod.Status.Phase != corev1.PodPending {
		delete(s.starting, pod.Name)
		return
	}
	s.starting[pod.Name], s.seen[pod.Name] = true, true
	s.most = max(s.most, len(s.starting))
}

// patch is safe for concurrent use.
func (b *bench) patch(pod, patch string) error {
	_, err := b.client.CoreV1().Pods(b.ns).Patch(context.WithoutCancel(b.t.Context()), pod, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
	return err
}

// runOne sets one of the starting pods to Running.
func (s *starts) runOne() {
	s.t.Helper()
	s.mu.Lock()
	name := ""
	for name = range s.starting {
		break
	}
	s.mu.Unlock()
	require.NoError(s.t, s.patch(name, `{"status":{"phase":"Running"}}`))
}

func (s *starts) counts() (seen, most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.seen), s.most
}

// untilSeen waits until this number of pods has been bound.
func (s *starts) untilSeen(want int) {
	s.t.Helper()
	require.EventuallyWithT(s.t, func(c *assert.CollectT) {
		seen, _ := s.counts()
		assert.Equal(c, want, seen)
	}, patience, again/10, "%d pods should be bound to the node", want)
}

// waitingForStart returns the number of pods with an event that they wait for a slot.
func (b *bench) waitingForStart() int {
	list, err := b.client.CoreV1().Events(b.ns).List(b.t.Context(), metav1.ListOptions{})
	if err != nil {
		return -1
	}
	pods := map[string]bool{}
	for _, e := range list.Items {
		if e.Reason == "WaitingForPreBind" && strings.Contains(e.Message, "start-limit: ") && strings.Contains(e.Message, "waiting for pods on the node to start") {
			pods[e.InvolvedObject.Name] = true
		}
	}
	return len(pods)
}

// testStartLimit binds four pods to a node on which two may start. Each pod that runs lets one more pod start. It stops one of two replicas,
// because one replica enforces the limit exactly.
func testStartLimit(t *testing.T, w *world) {
	const limit, all = 2, 4
	require.NoError(t, w.prebind.Remove(w.prebind.Replicas()[1]))
	w.configure(t, configHead+"prebindPlugins: ['*', start-limit]\narguments:\n  start-limit: {limit: 2, wait: 3m, startTimeout: 1h}\n")
	w.untilMetric(t, "prebind_start_limit_replicas 1")
	b := newBench(t, w, nil)
	node, toleration := b.ownNode("turns")
	s := b.observe(node)
	for i := range all {
		_, err := b.createPod(fmt.Sprintf("pod-%d", i), cluster.DefaultScheduler, toleration, b.steered())
		require.NoError(t, err)
	}
	require.EventuallyWithT(t, func(c *assert.CollectT) { assert.Equal(c, all-limit, b.waitingForStart()) }, patience, again, "the other pods should wait")
	for bound := limit; bound < all; bound++ {
		s.untilSeen(bound)
		s.runOne()
	}
	s.untilSeen(all)
	_, most := s.counts()
	assert.Equal(t, limit, most, "pods that started at the same time")
	assert.False(t, says(b.allEvents(), "FailedScheduling"), "no bind should fail: %q", b.allEvents())
}
