// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"context"
	"errors"
	"log"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

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
	tests := map[string]struct {
		reason string
		change func(n *corev1.Node)
		want   bool
	}{
		"Ready": {reason: "pods can be bound to it", change: func(*corev1.Node) {}, want: true},
		"Taint": {reason: "the pods have no tolerations", change: func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "a", Effect: corev1.TaintEffectNoSchedule}} }},
		"SoftTaint": {reason: "the taint does not exclude pods", change: func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "a", Effect: corev1.TaintEffectPreferNoSchedule}}
		}, want: true},
		"NoHostname": {reason: "pods cannot be pinned to it", change: func(n *corev1.Node) { n.Labels = nil }},
		"IsDeleted":  {reason: "it will be gone", change: func(n *corev1.Node) { n.DeletionTimestamp = &metav1.Time{Time: time.Now()} }},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			n := gen.Node("node-1")
			tc.change(n)
			assert.Equal(t, tc.want, isUsable(n), tc.reason)
		})
	}
}

// leftBy returns the objects of a run, as an interrupted run leaves them. The garbage collector deletes those that belong to the namespace.
func leftBy(run string) []runtime.Object {
	return []runtime.Object{
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: run, Labels: map[string]string{nodeLabel(run, "wait"): "true", nodeLabel(run, "volume"): "true", "kept": "true"}}},
		&storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: run}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: run, NodeID: run}, {Name: "kept", NodeID: run}}}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: run, Labels: map[string]string{managedBy: managedByValue}}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: run + "-uid", Labels: map[string]string{managedBy: managedByValue, runLabel: run}}},
	}
}

// left returns the namespaces of runs, the labels of nodes and the drivers.
func left(t *testing.T, client *fakeapi.Clientset) []string {
	t.Helper()
	var all []string
	ctx := context.WithoutCancel(t.Context())
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	require.NoError(t, err)
	for _, n := range nodes.Items {
		for key := range n.Labels {
			all = append(all, "label "+key)
		}
	}
	csiNodes, err := client.StorageV1().CSINodes().List(ctx, metav1.ListOptions{})
	require.NoError(t, err)
	for _, n := range csiNodes.Items {
		for _, d := range n.Spec.Drivers {
			all = append(all, "driver "+d.Name)
		}
	}
	namespaces, err := client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: "!" + runLabel})
	require.NoError(t, err)
	for _, ns := range namespaces.Items {
		all = append(all, "namespace "+ns.Name)
	}
	return all
}

// TestFinish checks that a run removes its objects, and only these, whatever happens.
func TestFinish(t *testing.T) {
	const run = "prebind-conformance-a"
	shop := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}
	kept := []string{"label kept", "driver kept", "namespace shop"}
	all := append([]string{"label " + nodeLabel(run, "wait"), "label " + nodeLabel(run, "volume"), "driver " + run, "namespace " + run}, kept...)
	tests := map[string]struct {
		reason string
		// down is the number of requests of the cleanup that fail.
		down        int
		interrupted bool
		err, says   string
	}{
		"Completed":   {reason: "all objects are removed", says: "removed all objects"},
		"Interrupted": {reason: "the cleanup does not depend on the context of the run", interrupted: true, says: "--cleanup --namespace-prefix=prebind-conformance-a"},
		"Outage":      {reason: "the API server fails for a moment", down: 3, says: "removed all objects"},
		"Down":        {reason: "the user must know how to clean up", down: math.MaxInt, err: "--cleanup --namespace-prefix=prebind-conformance-a"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := fakeapi.NewClientset(append(leftBy(run), shop)...)
				client.PrependReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
					tc.down--
					return tc.down >= 0, nil, apierrors.NewServiceUnavailable("down")
				})
				var progress bytes.Buffer
				s := sessionOn(client, &progress)
				ctx, cancel := context.WithCancel(t.Context())
				if tc.interrupted {
					cancel()
				}
				defer cancel()
				err := s.finish(ctx)
				want := kept
				if tc.err != "" {
					require.ErrorContains(t, err, tc.err, tc.reason)
					want = all
				} else {
					require.NoError(t, err, tc.reason)
				}
				assert.Contains(t, progress.String(), tc.says, tc.reason)
				tc.down = 0
				assert.ElementsMatch(t, want, left(t, client), tc.reason)
			})
		})
	}
}

// TestCleanup checks that --cleanup removes the runs with the prefix.
func TestCleanup(t *testing.T) {
	client := fakeapi.NewClientset(append(leftBy("prebind-conformance-a"), append(leftBy("prebind-conformance-b"), leftBy("ci-c")...)...)...)
	runs, err := Cleanup(t.Context(), client, "prebind-conformance-")
	require.NoError(t, err)
	assert.Equal(t, []string{"prebind-conformance-a", "prebind-conformance-b"}, runs)
	assert.ElementsMatch(t, []string{"label kept", "label kept", "label kept", "driver kept", "driver kept", "driver kept",
		"label " + nodeLabel("ci-c", "wait"), "label " + nodeLabel("ci-c", "volume"), "driver ci-c", "namespace ci-c"}, left(t, client), "the run with another prefix stays")

	client = fakeapi.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "prebind-conformance-own"}})
	runs, err = Cleanup(t.Context(), client, "prebind-conformance-")
	require.NoError(t, err)
	assert.Empty(t, runs, "a namespace without the label is not of a run")
}
