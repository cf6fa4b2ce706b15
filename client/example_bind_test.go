// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	prebind "github.com/prebind/prebind/client"
)

// Next is what a scheduler does with the pod after Bind.
type Next string

const (
	Bound      Next = "bound"      // Nothing: the kubelet starts the pod.
	Repeat     Next = "repeat"     // Keep the node for the pod, and call Bind again with the same arguments after the delay.
	Reschedule Next = "reschedule" // Release the node, and choose one again, with backoff.
	Forget     Next = "forget"     // Release the node. The watch reports the changed pod.
	Report     Next = "report"     // Release the node. Schedule the pod again when the pod or the request has changed.
)

// Bind posts one Binding. client-go repeats it up to ten times while Prebind answers 429.
func Bind(ctx context.Context, pods typedcorev1.PodsGetter, pod *corev1.Pod, node string, request prebind.Request) (Next, time.Duration, error) {
	binding, err := request.Binding(pod, node) // With the UID of the pod.
	if err != nil {
		return Report, 0, err
	}
	if err = pods.Pods(pod.Namespace).Bind(ctx, binding, metav1.CreateOptions{}); err == nil {
		return Bound, 0, nil
	}
	switch answer := prebind.Classify(err); answer.Kind {
	case prebind.Waiting:
		return Repeat, answer.Delay, err
	case prebind.Refused, prebind.Internal:
		return Reschedule, 0, err
	case prebind.Stale:
		return Forget, 0, err
	case prebind.Invalid:
		return Report, 0, err
	default: // Prebind did not deny the Binding. The API server, another webhook or the network did.
		return other(err)
	}
}

func other(err error) (Next, time.Duration, error) {
	switch delay, _ := apierrors.SuggestsClientDelay(err); {
	case apierrors.IsTooManyRequests(err): // API priority and fairness.
		return Repeat, time.Duration(max(delay, 1)) * time.Second, err
	case apierrors.IsConflict(err), apierrors.IsNotFound(err): // The pod is bound, has changed, or is gone.
		return Forget, 0, err
	default:
		return Reschedule, 0, err // After a timeout the pod can be bound. Then the watch reports it.
	}
}
