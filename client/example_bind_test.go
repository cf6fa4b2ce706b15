// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
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
	Avoid      Next = "avoid"      // As Reschedule, but prefer other nodes, unless a volume of the pod is tied to this one.
	Reschedule Next = "reschedule" // Release the node, and choose one again, with backoff. Do not exclude the node.
	Forget     Next = "forget"     // After an unknown outcome, read the pod: it can be bound. Otherwise, release the node, and queue the pod when the watch reports a change, or at once if it did so during Bind.
	Report     Next = "report"     // Release the node. Queue the pod when its spec, annotations or labels, or the request, have changed.
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
	case prebind.Refused:
		return Avoid, 0, err
	case prebind.Internal:
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
	case apierrors.IsConflict(err), apierrors.IsNotFound(err): // The pod is bound, has changed, or is gone.
		return Forget, 0, err
	case apierrors.IsTooManyRequests(err), unknownOutcome(err): // A 429 of API priority and fairness.
		return Repeat, time.Duration(max(delay, 1)) * time.Second, err
	case apierrors.IsForbidden(err) && !fromWebhook(err): // A permission is missing.
		return Report, 0, err
	default: // For example, the API server could not call Prebind.
		return Reschedule, 0, err
	}
}

// unknownOutcome returns whether the pod can have been bound: an error of the API server that is not about a webhook, such as the election of
// etcd's leader, or of the network, or the end of the context.
func unknownOutcome(err error) bool {
	var api apierrors.APIStatus
	return !errors.As(err, &api) || api.Status().Code >= http.StatusInternalServerError && !fromWebhook(err)
}

// fromWebhook returns whether the error is the denial of a webhook, or that of a failed call of one.
func fromWebhook(err error) bool { return strings.Contains(err.Error(), " webhook \"") }
