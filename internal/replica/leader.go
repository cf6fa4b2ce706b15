// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
)

// Times of the election, as in kube-controller-manager.
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
)

const (
	// leaderLease is held by the leader.
	leaderLease = "prebind-leader"
	// RequestTakes is the time limit for a request about leases. It is half of the deadline of
	// the election for a renewal, which allows a second try, and well below duration.
	RequestTakes = renewDeadline / 2
)

// Leads returns whether this replica leads.
func (r *Replicas) Leads() bool {
	leads := r.leads.Load()
	return !r.o.Elect || leads != nil && (*leads)()
}

// elect takes part in the election until the context ends. A replica that loses the lease can become the leader again, while
// controller-runtime's election would end the process.
func (r *Replicas) elect(ctx context.Context) {
	for r.o.Elect && ctx.Err() == nil {
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Lock: &resourcelock.LeaseLock{
				LeaseMeta:  metav1.ObjectMeta{Namespace: r.o.Namespace, Name: leaderLease},
				Client:     r.o.Client.CoordinationV1(),
				LockConfig: resourcelock.ResourceLockConfig{Identity: r.o.ID},
			},
			LeaseDuration:   leaseDuration,
			RenewDeadline:   renewDeadline,
			RetryPeriod:     retryPeriod,
			ReleaseOnCancel: true,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(ctx context.Context) { r.leads.Store(new(func() bool { return ctx.Err() == nil })) },
				OnStoppedLeading: func() {},
			},
		})
		if err != nil {
			klog.FromContext(ctx).Error(err, "Could not take part in the election of the leader")
			return
		}
		elector.Run(ctx)
	}
}
