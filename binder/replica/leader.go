// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
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

// Lead calls run in one replica at a time, with a context that ends when this replica is no
// longer the leader. A replica that loses the lease can become the leader again, while
// controller-runtime's election would end the process. Lead returns when the context ends. The
// client must have a request timeout; see RequestTakes.
func Lead(ctx context.Context, client kubernetes.Interface, namespace, id string, run func(context.Context)) error {
	for ctx.Err() == nil {
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Lock: &resourcelock.LeaseLock{
				LeaseMeta:  metav1.ObjectMeta{Namespace: namespace, Name: leaderLease},
				Client:     client.CoordinationV1(),
				LockConfig: resourcelock.ResourceLockConfig{Identity: id},
			},
			LeaseDuration:   leaseDuration,
			RenewDeadline:   renewDeadline,
			RetryPeriod:     retryPeriod,
			ReleaseOnCancel: true,
			Callbacks:       leaderelection.LeaderCallbacks{OnStartedLeading: run, OnStoppedLeading: func() {}},
		})
		if err != nil {
			return fmt.Errorf("electing a leader: %w", err)
		}
		elector.Run(ctx)
	}
	return nil
}
