// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"context"
	"errors"
	"log"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prebind/prebind/test/fakeapi"
	"github.com/prebind/prebind/test/gen"
)

// sessionOn returns a session in the namespace prebind-conformance-a.
func sessionOn(client *fakeapi.Clientset, progress *bytes.Buffer) *session {
	o := Options{NamespacePrefix: "prebind-conformance-", Wait: 35 * time.Second, Timeout: 2 * time.Minute, Burst: 50}
	return &session{Options: o, client: client, log: log.New(progress, "", 0), ns: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "prebind-conformance-a"}}}
}

// bubble runs a test in a bubble of synctest.
func bubble(test func(t *testing.T)) func(t *testing.T) {
	return func(t *testing.T) { synctest.Test(t, test) }
}

// podsIn returns the names of the pods of the run.
func podsIn(t *testing.T, s *session) []string {
	t.Helper()
	pods, err := s.client.CoreV1().Pods(s.ns.Name).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	names := []string{}
	for _, pod := range pods.Items {
		names = append(names, pod.Name)
	}
	return names
}

// TestMake checks the result of a check by how it ends, and that its pods are gone before the next check.
func TestMake(t *testing.T) {
	tests := map[string]struct {
		reason string
		end    func(check *trial)
		// slow makes the cluster overloaded.
		slow bool
		want Result
	}{
		"Pass":  {reason: "the detail shows what was observed", end: func(*trial) {}, want: Result{Status: Pass, Detail: "passed"}},
		"Fail":  {reason: "a violation has advice", end: func(c *trial) { c.violates("Do it.", "not\n%s", "done") }, want: Result{Status: Fail, Detail: "not done", Advice: "Do it."}},
		"Error": {reason: "it says nothing about the scheduler", end: func(c *trial) { c.must(errors.New("x")) }, want: Result{Status: Errored, Detail: "x"}},
		"Skip":  {reason: "the cluster lacks something", end: func(c *trial) { c.skips("lacks %s", "x") }, slow: true, want: Result{Status: Skipped, Detail: "lacks x"}},
		"NoResult": {reason: "the cluster can be the cause", end: func(c *trial) { c.violates("Do it.", "not done") }, slow: true,
			want: Result{Status: NoResult, Detail: "the cluster is overloaded: 2s of 2s passed in requests of this command that took more than 1s; FAIL: not done"}},
		"Slow": {reason: "the scheduler conforms also on a slow cluster", end: func(*trial) {}, slow: true, want: Result{Status: Pass, Detail: "passed"}},
	}
	for name, tc := range tests {
		t.Run(name, bubble(func(t *testing.T) {
			s := sessionOn(fakeapi.NewClientset(), &bytes.Buffer{})
			(&trial{session: s}).creates(t.Context(), "probe")
			r := s.make(t.Context(), check{name: "x", run: func(ctx context.Context, check *trial) string {
				check.creates(ctx, "a")
				check.creates(ctx, "b")
				// Another component replaces a pod.
				pods := s.client.CoreV1().Pods(s.ns.Name)
				assert.NoError(t, pods.Delete(ctx, "b", metav1.DeleteOptions{}))
				_, err := pods.Create(ctx, s.pod("b"), metav1.CreateOptions{})
				assert.NoError(t, err)
				check.until(ctx, time.Minute, func(context.Context) (bool, error) {
					if tc.slow {
						<-time.After(2 * time.Second)
					}
					return true, nil
				})
				tc.end(check)
				return "passed"
			}})
			r.Duration, tc.want.Check = 0, "x"
			assert.Equal(t, tc.want, r, tc.reason)
			assert.Equal(t, []string{"probe"}, podsIn(t, s))
		}))
	}
}

// TestOverload checks when a check has no result because of the cluster.
func TestOverload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		check := &trial{began: time.Now()}
		<-time.After(20 * time.Second)
		check.slow = 2 * time.Second
		assert.Empty(t, check.overload(), "one slow request does not explain a failure after 20 s")
		check.slow += time.Second
		assert.Equal(t, "the cluster is overloaded: 3s of 20s passed in requests of this command that took more than 1s", check.overload())
	})
}

// TestMake_Interrupted checks that an interrupted run starts no check, and does not report those in progress.
func TestMake_Interrupted(t *testing.T) {
	var progress bytes.Buffer
	s := sessionOn(fakeapi.NewClientset(), &progress)
	ctx, interrupt := context.WithCancel(t.Context())
	made := 0
	c := check{name: "x", run: func(ctx context.Context, check *trial) string {
		made++
		interrupt()
		check.until(ctx, time.Minute, func(context.Context) (bool, error) { return false, nil })
		return ""
	}}
	s.make(ctx, c)
	s.make(ctx, c)
	assert.Equal(t, 1, made)
	assert.Equal(t, "x: started\n", progress.String())
}

func TestIsUsable(t *testing.T) {
	ready := func(options ...gen.NodeOption) *corev1.Node {
		n := gen.Node("node-1", options...)
		n.Labels = map[string]string{corev1.LabelHostname: "node-1"}
		return n
	}
	change := func(f func(n *corev1.Node)) *corev1.Node {
		n := ready()
		f(n)
		return n
	}
	tests := map[string]struct {
		reason string
		node   *corev1.Node
		want   bool
	}{
		"Ready": {reason: "pods can be bound to it", node: ready(), want: true},
		"Taint": {reason: "the pods have no tolerations", node: change(func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "a", Effect: corev1.TaintEffectNoSchedule}} })},
		"SoftTaint": {reason: "the taint does not exclude pods", node: change(func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "a", Effect: corev1.TaintEffectPreferNoSchedule}}
		}), want: true},
		"NoHostname": {reason: "pods cannot be pinned to it", node: change(func(n *corev1.Node) { n.Labels = nil })},
		"IsDeleted":  {reason: "it will be gone", node: change(func(n *corev1.Node) { n.DeletionTimestamp = &metav1.Time{Time: time.Now()} })},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) { assert.Equal(t, tc.want, isUsable(tc.node), tc.reason) })
	}
}
