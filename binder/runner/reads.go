// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
)

// readTimeout limits one read of a pod from the API server.
const readTimeout = 10 * time.Second

// StillPending returns whether the cache holds the pod as one that can be bound.
func (r *Runner) StillPending(ctx context.Context, name types.NamespacedName, uid types.UID) bool {
	pod := &corev1.Pod{}
	err := r.Cached.Get(ctx, name, pod)
	return err == nil && pod.UID == uid && pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil
}

// LivePod returns the pod from the API server, or nil if there is none.
func (r *Runner) LivePod(ctx context.Context, name types.NamespacedName) (*corev1.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	pod := &corev1.Pod{}
	r.Tracker.ReadLive("", "Pod", ReadOutcome)
	err := r.Live.Get(ctx, name, pod)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return pod, err
}
