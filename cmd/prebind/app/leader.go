// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/prebind/prebind/binder/recovery"
)

// leaderLease is held by the replica that sweeps.
const leaderLease = "prebind-leader"

// Times of the election, as in kube-controller-manager.
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
)

// elected runs the sweeper in one replica at a time. A replica that loses the
// lease goes on answering, and stands for election again: controller-runtime's own
// election would end the process.
func elected(o *serveOptions, client kubernetes.Interface, id string, sweeper *recovery.Sweeper) manager.Runnable {
	if !o.leaderElect {
		return sweeping(sweeper)
	}
	return everyReplica(func(ctx context.Context) error {
		for ctx.Err() == nil {
			elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
				Lock: &resourcelock.LeaseLock{
					LeaseMeta:  metav1.ObjectMeta{Namespace: o.namespace, Name: leaderLease},
					Client:     client.CoordinationV1(),
					LockConfig: resourcelock.ResourceLockConfig{Identity: id},
				},
				LeaseDuration:   leaseDuration,
				RenewDeadline:   renewDeadline,
				RetryPeriod:     retryPeriod,
				ReleaseOnCancel: true,
				Callbacks: leaderelection.LeaderCallbacks{
					OnStartedLeading: sweeper.Run,
					OnStoppedLeading: func() {},
				},
			})
			if err != nil {
				return fmt.Errorf("electing a leader: %w", err)
			}
			elector.Run(ctx)
		}
		return nil
	})
}

// sweeping runs the sweeper in every replica.
func sweeping(sweeper *recovery.Sweeper) manager.Runnable {
	return everyReplica(func(ctx context.Context) error {
		sweeper.Run(ctx)
		return nil
	})
}

// everyReplica is a runnable that needs no leader election of the manager's.
type everyReplica func(ctx context.Context) error

// Start implements manager.Runnable.
func (f everyReplica) Start(ctx context.Context) error { return f(ctx) }

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (everyReplica) NeedLeaderElection() bool { return false }
