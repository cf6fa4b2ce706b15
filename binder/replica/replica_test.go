// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/clock"
)

func newReplicas(t *testing.T, client kubernetes.Interface, id string) *Replicas {
	t.Helper()
	r, err := New(Options{ID: id, Client: client, Namespace: "prebind-system", Clock: clock.RealClock{}})
	require.NoError(t, err)
	return r
}

func TestOptions(t *testing.T) {
	valid := Options{ID: "a", Client: fake.NewClientset(), Namespace: "ns", Clock: clock.RealClock{}}
	for name, change := range map[string]func(*Options){
		"ID":        func(o *Options) { o.ID = "" },
		"Client":    func(o *Options) { o.Client = nil },
		"Namespace": func(o *Options) { o.Namespace = "" },
		"Clock":     func(o *Options) { o.Clock = nil },
	} {
		o := valid
		change(&o)
		_, err := New(o)
		assert.Error(t, err, name)
	}
	one, other := NewID(), NewID()
	assert.NotEqual(t, one, other)
}

// A replica lives as long as it renews, is taken for dead when it stops without a
// word, and at once when it says good-bye. The fake client here stands for the
// API server's storage only: a version that changes with each write.
func TestLiving(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		observer := newReplicas(t, client, "observer")
		politeCtx, stopPolite := context.WithCancel(t.Context())
		polite := newReplicas(t, client, "polite")
		left := make(chan struct{})
		go func() {
			defer close(left)
			_ = polite.Start(politeCtx)
		}()
		// The crashed one has written its lease once.
		crash, stopCrashed := context.WithCancel(t.Context())
		crashed := newReplicas(t, client, "crashed")
		go func() { _ = crashed.Start(crash) }()
		synctest.Wait()

		living, err := observer.Living(t.Context())
		require.NoError(t, err)
		assert.Equal(t, map[string]bool{"polite": true, "crashed": true}, living)

		stopCrashed()
		synctest.Wait()
		// Its own good-bye is undone: it crashed.
		l, err := client.CoordinationV1().Leases("prebind-system").Get(t.Context(), prefix+"polite", metav1.GetOptions{})
		require.NoError(t, err)
		l = l.DeepCopy()
		l.Name, l.Labels[label], l.ResourceVersion = prefix+"crashed", "crashed", "1"
		_, err = client.CoordinationV1().Leases("prebind-system").Create(t.Context(), l, metav1.CreateOptions{})
		require.NoError(t, err)
		for range 5 {
			_, err = observer.Living(t.Context())
			require.NoError(t, err)
			<-time.After(renewal)
		}
		living, err = observer.Living(t.Context())
		require.NoError(t, err)
		assert.NotContains(t, living, "crashed", "it has not renewed")
		_, err = client.CoordinationV1().Leases("prebind-system").Get(t.Context(), prefix+"crashed", metav1.GetOptions{})
		assert.Error(t, err, "its lease is removed")

		stopPolite()
		<-left
		living, err = observer.Living(t.Context())
		require.NoError(t, err)
		assert.Empty(t, living)
	})
}

// TestReportOf: a replica's clock may be wrong, and the API server's is told.
func TestReportOf(t *testing.T) {
	written := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	l := &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{RenewTime: new(metav1.NewMicroTime(written.Add(time.Hour)))}}
	l.Labels, l.Annotations = map[string]string{label: "a"}, map[string]string{statusAnnotation: "fine"}
	assert.Equal(t, Report{ID: "a", Status: "fine", Renewed: written.Add(time.Hour)}, reportOf(l), "nobody tells another time")
	l.ManagedFields = []metav1.ManagedFieldsEntry{{}, {Time: new(metav1.NewTime(written))}, {Time: new(metav1.NewTime(written.Add(-time.Minute)))}}
	assert.Equal(t, Report{ID: "a", Status: "fine", Renewed: written, Ahead: time.Hour}, reportOf(l), "the last write is the renewal")
	l.Spec.RenewTime = nil
	assert.Equal(t, Report{ID: "a", Status: "fine"}, reportOf(l), "it has not been renewed")
}
