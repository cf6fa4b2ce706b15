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
	// RequestTakes is the time limit for a request of a client for leases: half of what
	// the election gives a renewal, so that there is a second try, and far less than
	// other replicas wait for one.
	RequestTakes = renewDeadline / 2
)

// Lead calls run in one replica at a time, with a context that ends when this replica
// is not the leader any more. A replica that loses the lease stands for election again,
// while controller-runtime's own election would end the process. Lead returns when the
// context ends. The client must give requests up; see RequestTakes.
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
