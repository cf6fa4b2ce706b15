// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/prebind/prebind/test/fakeapi"
)

// readGuide returns the anchors of docs/for-schedulers.md.
func readGuide(t *testing.T) []string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "for-schedulers.md"))
	require.NoError(t, err)
	var anchors []string
	for _, m := range regexp.MustCompile("(?m)^##+ (.*)$").FindAllStringSubmatch(string(page), -1) {
		anchor := strings.ToLower(strings.ReplaceAll(m[1], " ", "-"))
		anchors = append(anchors, strings.ReplaceAll(anchor, ",", ""))
	}
	return anchors
}

// leftBy returns the objects of a run, as an interrupted run leaves them.
func leftBy(run string) []runtime.Object {
	of := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: name, Labels: map[string]string{managedBy: managedByValue, runLabel: run}}
	}
	return []runtime.Object{
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: run, Labels: map[string]string{releaseLabel(run, "wait"): "true"}}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: run, Labels: map[string]string{managedBy: managedByValue}}},
		&corev1.Namespace{ObjectMeta: of(run + "-uid")},
		&corev1.PersistentVolume{ObjectMeta: of(run + "-volume")},
		&storagev1.StorageClass{ObjectMeta: of(run + "-volume")},
		&admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: of(run + ".conformance.prebind.dev")},
		&admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: of(run + ".conformance.prebind.dev")},
	}
}

// left returns the names of all objects of the kinds that a run creates, and the labels of nodes.
func left(t *testing.T, client *fakeapi.Clientset) []string {
	t.Helper()
	var all []string
	ctx := context.WithoutCancel(t.Context())
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	require.NoError(t, err)
	for i := range nodes.Items {
		for key := range nodes.Items[i].Labels {
			all = append(all, "label "+key)
		}
	}
	for _, k := range kinds(client) {
		objects, err := k.list(ctx, metav1.ListOptions{})
		require.NoError(t, err)
		for _, o := range objects {
			all = append(all, k.name+" "+o.GetName())
		}
	}
	return all
}

func sessionOn(client *fakeapi.Clientset, progress *bytes.Buffer) *session {
	o := Default()
	o.Progress, o.CleanupTimeout = progress, 2*time.Second
	return &session{Options: o, client: client, ns: "prebind-conformance-a", progress: &sync.Mutex{}}
}

// TestFinish checks that a run removes its objects, and only these, whatever happens.
func TestFinish(t *testing.T) {
	others := []runtime.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}},
		&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "data"}},
		&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "standard", Labels: map[string]string{runLabel: "prebind-conformance-b"}}},
	}
	kept := []string{"Namespaces shop", "PersistentVolumes data", "StorageClasses standard"}
	tests := map[string]struct {
		reason string
		// answer is the answer of the API server to the nth request of the cleanup.
		answer      func(n int, a clienttesting.Action) error
		interrupted bool
		keep        bool
		left        int
		err         string
		says        string
	}{
		"Completed":   {reason: "all objects are removed", says: "removed all objects"},
		"Interrupted": {reason: "the cleanup does not depend on the context of the run", interrupted: true, says: "interrupt again to exit at once"},
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
			reason: "the user must know how to clean up", left: 7, err: "kubectl delete namespace prebind-conformance-a",
			answer: func(int, clienttesting.Action) error { return apierrors.NewServiceUnavailable("down") },
		},
		"NotPermitted": {
			reason: "a user without permission for policies has not created any", left: 2, says: "removed all objects",
			answer: func(_ int, a clienttesting.Action) error {
				if a.GetResource().Group == "admissionregistration.k8s.io" {
					return apierrors.NewForbidden(a.GetResource().GroupResource(), "", errors.New("no"))
				}
				return nil
			},
		},
		"Keep": {reason: "the user wants to look at the objects", keep: true, left: 7, says: "kubectl delete namespace prebind-conformance-a"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			client := fakeapi.NewClientset(append(leftBy("prebind-conformance-a"), others...)...)
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
			s.Keep = tc.keep
			ctx, cancel := context.WithCancel(t.Context())
			if tc.interrupted {
				cancel()
			}
			defer cancel()
			err := s.finish(ctx)
			over = true
			if tc.err != "" {
				require.ErrorIs(t, err, ErrLeftovers)
				require.ErrorContains(t, err, tc.err, tc.reason)
			} else {
				require.NoError(t, err, tc.reason)
			}
			assert.Contains(t, progress.String(), tc.says, tc.reason)
			found := left(t, client)
			assert.Subset(t, found, kept)
			assert.Len(t, found, len(kept)+tc.left, "%s: %v", tc.reason, found)
		})
	}
}

// TestFinish_SecondInterrupt checks that a second interrupt ends the cleanup.
func TestFinish_SecondInterrupt(t *testing.T) {
	client := fakeapi.NewClientset(leftBy("prebind-conformance-a")...)
	ctx, first := context.WithCancel(t.Context())
	second, again := context.WithCancel(t.Context())
	client.PrependReactor("list", "namespaces", func(clienttesting.Action) (bool, runtime.Object, error) {
		again()
		return true, nil, apierrors.NewServiceUnavailable("down")
	})
	var progress bytes.Buffer
	s := sessionOn(client, &progress)
	s.CleanupTimeout = 20 * time.Second
	first()
	began := time.Now()
	err := s.finish(Impatient(ctx, second))
	require.ErrorIs(t, err, ErrLeftovers)
	assert.Less(t, time.Since(began), s.CleanupTimeout/2, "the second interrupt should end the cleanup")
	assert.ErrorContains(t, err, "kubectl delete namespace")
}

// TestCleanup checks that --cleanup removes the runs with the prefix.
func TestCleanup(t *testing.T) {
	client := fakeapi.NewClientset(append(leftBy("prebind-conformance-a"), append(leftBy("prebind-conformance-b"), leftBy("ci-c")...)...)...)
	runs, err := cleanup(t.Context(), client, "prebind-conformance-")
	require.NoError(t, err)
	assert.Equal(t, []string{"prebind-conformance-a", "prebind-conformance-b"}, runs)
	assert.Len(t, left(t, client), 7, "the run with another prefix stays")

	client = fakeapi.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "prebind-conformance-own"}})
	runs, err = cleanup(t.Context(), client, "prebind-conformance-")
	require.NoError(t, err)
	assert.Empty(t, runs, "a namespace without the label is not of a run")
	assert.ErrorContains(t, remove(limited(t), client, "prebind-conformance-own"), "does not have the label")
}

func limited(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	t.Cleanup(cancel)
	return ctx
}

// TestPermitted checks that missing permissions are one line.
func TestPermitted(t *testing.T) {
	client := fakeapi.NewClientset()
	client.PrependReactor("create", "selfsubjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		create, ok := a.(clienttesting.CreateAction)
		require.True(t, ok)
		review, ok := create.GetObject().(*authorizationv1.SelfSubjectAccessReview)
		require.True(t, ok)
		review.Status.Allowed = review.Spec.ResourceAttributes.Verb != "create"
		return true, review, nil
	})
	s := sessionOn(client, &bytes.Buffer{})
	err := s.permitted(t.Context(), []check{{name: "volume", needs: volumePermissions()}, {name: "rollback", needs: volumePermissions()}})
	require.EqualError(t, err, "your user lacks permissions: create namespaces, create pods, create pods/binding, create persistentvolumeclaims, "+
		"create persistentvolumes, create storageclasses.storage.k8s.io; grant the ClusterRole of docs/conformance.md, or select other checks with --run")
}
