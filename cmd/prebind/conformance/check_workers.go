// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// waiters is the number of pods that wait in the check workers. It is above the usual number of bind workers.
const waiters = 12

// checkWorkers checks that pods that wait do not delay the bind of another pod.
func (s *session) checkWorkers(ctx context.Context) (detail string, err error) {
	var waiting []*corev1.Pod
	defer func() {
		for _, pod := range waiting {
			err = errors.Join(err, s.delete(ctx, pod))
		}
	}()
	for i := range waiters {
		pod, err := s.create(ctx, s.pod(fmt.Sprintf("waiter-%d", i), waits))
		if err != nil {
			return "", err
		}
		waiting = append(waiting, pod)
	}
	if err := s.waiting(ctx, waiting[0]); err != nil {
		return "", err
	}
	began := time.Now()
	pod, err := s.create(ctx, s.pod("workers"))
	if err != nil {
		return "", err
	}
	_, err = s.bound(ctx, pod, s.Timeout, fmt.Sprintf("While %d pods wait, other pods must be bound. Bind each pod in its own goroutine, use more bind workers, or repeat waiting Bindings from a delayed queue.", waiters))
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("while %d pods waited, another pod was bound in %s", waiters, seconds(time.Since(began))), nil
}
