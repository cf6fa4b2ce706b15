// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/prebind/prebind/test/fakeapi"
)

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
		// answer is the answer of the API server to the nth request of the cleanup.
		answer      func(n int, a clienttesting.Action) error
		interrupted bool
		left        bool
		err         string
		says        string
	}{
		"Completed":   {reason: "all objects are removed", says: "removed all objects"},
		"Interrupted": {reason: "the cleanup does not depend on the context of the run", interrupted: true, says: "--cleanup --namespace-prefix=prebind-conformance-a"},
		"Outage": {
			reason: "the API server fails for a moment", says: "removed all objects",
			answer: func(n int, _ clienttesting.Action) error {
				if n < 4 {
					return apierrors.NewServiceUnavailable("down")
				}
				return nil
			},
		},
		"Down": {
			reason: "the user must know how to clean up", left: true, err: "--cleanup --namespace-prefix=prebind-conformance-a",
			answer: func(int, clienttesting.Action) error { return apierrors.NewServiceUnavailable("down") },
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := fakeapi.NewClientset(append(leftBy(run), shop)...)
				requests, over := 0, false
				client.PrependReactor("*", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
					if over || tc.answer == nil {
						return false, nil, nil
					}
					requests++
					err := tc.answer(requests, a)
					return err != nil, nil, err
				})
				var progress bytes.Buffer
				s := sessionOn(client, &progress)
				ctx, cancel := context.WithCancel(t.Context())
				if tc.interrupted {
					cancel()
				}
				defer cancel()
				err := s.finish(ctx)
				over = true
				if tc.err != "" {
					require.ErrorContains(t, err, tc.err, tc.reason)
				} else {
					require.NoError(t, err, tc.reason)
				}
				assert.Contains(t, progress.String(), tc.says, tc.reason)
				want := kept
				if tc.left {
					want = all
				}
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
