// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"context"
	"errors"
	"testing"
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
	o := Default()
	o.Progress = progress
	return &session{Options: o, client: client, ns: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "prebind-conformance-a"}}}
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

// TestMake_Pods checks that the pods of a check that does not pass are gone before the next check.
func TestMake_Pods(t *testing.T) {
	tests := map[string]struct {
		reason string
		err    error
		// slow makes the cluster overloaded.
		slow bool
		want []string
	}{
		"Pass":     {reason: "later checks can count on the pods", want: []string{"a", "b", "probe"}},
		"Fail":     {reason: "a pod that is not bound delays others", err: &outcome{status: Fail}, want: []string{"probe"}},
		"Error":    {reason: "the state of the pods is unknown", err: errors.New("x"), want: []string{"probe"}},
		"NoResult": {reason: "the pods of a check without a result delay others too", err: &outcome{status: Fail}, slow: true, want: []string{"probe"}},
		"Skip":     {reason: "the check created nothing that waits", err: skip("x"), want: []string{"a", "b", "probe"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := sessionOn(fakeapi.NewClientset(), &bytes.Buffer{})
			_, err := s.create(t.Context(), s.pod("probe"))
			require.NoError(t, err)
			r := s.make(t.Context(), check{name: "x", run: func(ctx context.Context, check *trial) string {
				check.creates(ctx, "a")
				check.creates(ctx, "b")
				// Another component replaces a pod.
				pods := s.client.CoreV1().Pods(s.ns.Name)
				assert.NoError(t, pods.Delete(ctx, "b", metav1.DeleteOptions{}))
				_, err := pods.Create(ctx, s.pod("b"), metav1.CreateOptions{})
				assert.NoError(t, err)
				if tc.slow {
					s.load.slow = time.Hour
				}
				check.must(tc.err)
				return "passed"
			}})
			assert.Equal(t, tc.err == nil, r.Detail == "passed", "a step that fails should end the check")
			assert.Equal(t, tc.slow, r.Status == NoResult, r.Status)
			assert.Equal(t, tc.want, podsIn(t, s), tc.reason)
		})
	}
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
	assert.Equal(t, Errored, s.make(ctx, c).Status)
	assert.Equal(t, Errored, s.make(ctx, c).Status)
	assert.Equal(t, 1, made)
	assert.Equal(t, "x: started\n", progress.String())
}

func TestIsUsable(t *testing.T) {
	ready := func(options ...gen.NodeOption) *corev1.Node {
		n := gen.Node("node-1", options...)
		n.Labels = map[string]string{corev1.LabelHostname: "node-1"}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
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
		"Ready":    {reason: "pods can be bound to it", node: ready(), want: true},
		"NotReady": {reason: "the scheduler avoids it", node: change(func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown })},
		"Cordoned": {reason: "the scheduler avoids it", node: change(func(n *corev1.Node) { n.Spec.Unschedulable = true })},
		"Taint":    {reason: "the pods have no tolerations", node: change(func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "a", Effect: corev1.TaintEffectNoSchedule}} })},
		"SoftTaint": {reason: "the taint does not exclude pods", node: change(func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "a", Effect: corev1.TaintEffectPreferNoSchedule}}
		}), want: true},
		"NoHostname":  {reason: "pods cannot be pinned to it", node: change(func(n *corev1.Node) { n.Labels = nil })},
		"IsDeleted":   {reason: "it will be gone", node: change(func(n *corev1.Node) { n.DeletionTimestamp = &metav1.Time{Time: time.Now()} })},
		"NoCondition": {reason: "its state is unknown", node: change(func(n *corev1.Node) { n.Status.Conditions = nil })},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) { assert.Equal(t, tc.want, isUsable(tc.node), tc.reason) })
	}
}
