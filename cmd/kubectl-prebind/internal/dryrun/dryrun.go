// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package dryrun asks Prebind with dry-run Bindings what it would do with a bind.
package dryrun

import (
	"context"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/webhook"
)

// Answer is the answer to a dry-run Binding.
type Answer struct {
	// Prebind is the explanation of Prebind. It is nil if Prebind does not take part in the bind.
	Prebind *binder.Explanation
	// Warnings are the other warnings of the API server and of webhooks.
	Warnings []string
	// Err is the answer of the API server. It is nil if the API server allows the bind.
	Err error
}

// Explain posts a dry-run Binding of the pod with the annotations, and asks Prebind to explain it. The error means that there is no
// answer that this version can read.
func Explain(ctx context.Context, config *rest.Config, pod *corev1.Pod, node string, annotations map[string]string) (Answer, error) {
	warnings := &warningList{}
	config = rest.CopyConfig(config)
	config.WarningHandlerWithContext = warnings
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return Answer{}, fmt.Errorf("setting up a client: %w", err)
	}
	asks := map[string]string{webhook.ExplainAnnotation: "true"}
	maps.Copy(asks, annotations)
	answer := Answer{Err: Post(ctx, client, Binding(pod, node, asks), DryRun)}
	for _, w := range *warnings {
		x, err := webhook.DecodeExplanation(w)
		switch {
		case err != nil:
			return Answer{}, fmt.Errorf("%w: use the version of prebind that runs in the cluster", err)
		case x != nil:
			answer.Prebind = x
		default:
			answer.Warnings = append(answer.Warnings, w)
		}
	}
	return answer, nil
}

// DryRun are the options of a dry run.
var DryRun = metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}

// Post posts the Binding once. By default, the client would repeat it after a 429.
func Post(ctx context.Context, client kubernetes.Interface, b *corev1.Binding, o metav1.CreateOptions) error {
	return client.CoreV1().RESTClient().Post().
		Namespace(b.Namespace).Resource("pods").Name(b.Name).SubResource("binding").
		VersionedParams(&o, scheme.ParameterCodec).
		MaxRetries(0).Body(b).Do(ctx).Error()
}

// Binding returns the Binding that a scheduler posts.
func Binding(pod *corev1.Pod, node string, annotations map[string]string) *corev1.Binding {
	return &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, Annotations: annotations},
		Target:     corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node},
	}
}

// warningList collects the API server's warnings of one request.
type warningList []string

// HandleWarningHeaderWithContext implements rest.WarningHandlerWithContext.
func (l *warningList) HandleWarningHeaderWithContext(_ context.Context, code int, _, text string) {
	if code == 299 && text != "" {
		*l = append(*l, text)
	}
}
