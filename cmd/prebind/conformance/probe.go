// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/webhook"
)

// probeName is the name of a pod that is never bound. The command asks Prebind about it with dry runs.
const probeName = "probe"

// probe finds out what Prebind does in the namespace. It returns the pod with which it has asked.
func (s *session) probe(ctx context.Context) (*corev1.Pod, error) {
	pod, err := s.create(ctx, s.pod(probeName, unscheduled))
	if err != nil {
		return nil, err
	}
	x, err := s.explain(ctx, s.nodes[0].Name, nil)
	switch {
	case err != nil:
		return nil, err
	case x == nil:
		return nil, errors.New("binds in new namespaces do not pass Prebind: it is not installed, its mode is Off, or failurePolicy is Ignore and no replica answers; run 'prebind status'")
	case x.Mode != binder.ModeEnforce:
		return nil, fmt.Errorf("the mode of Prebind in new namespaces is %s; the checks need Enforce, for example with a rule for the namespaces %s*", x.Mode, s.NamespacePrefix)
	case x.Refusal != nil:
		return nil, fmt.Errorf("a plain pod is refused on node %s: %s: %s; choose other nodes with --nodes", s.nodes[0].Name, x.Refusal.Plugin, x.Refusal.Message)
	}
	for _, p := range x.Plugins {
		s.plugins = append(s.plugins, p.Name)
	}
	s.say("Prebind is active; plugins: %s", strings.Join(s.plugins, ", "))
	return pod, nil
}

// explain returns what Prebind would do with a bind of the probe to the node, or nil if it does not take part.
func (s *session) explain(ctx context.Context, node string, annotations map[string]string) (*binder.Explanation, error) {
	pod, err := s.client.CoreV1().Pods(s.ns).Get(ctx, probeName, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading pod %s: %w", probeName, err)
	}
	warnings := &warnings{}
	config := rest.CopyConfig(s.config)
	config.WarningHandlerWithContext = warnings
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("setting up a client: %w", err)
	}
	annotations = maps.Clone(annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[webhook.ExplainAnnotation] = "true"
	err = client.CoreV1().RESTClient().Post().Namespace(s.ns).Resource("pods").Name(probeName).SubResource("binding").
		VersionedParams(&metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}, scheme.ParameterCodec).
		MaxRetries(0).Body(bindingOf(pod, node, annotations)).Do(ctx).Error()
	for _, w := range warnings.all() {
		x, decodeErr := webhook.DecodeExplanation(w)
		if decodeErr != nil {
			return nil, fmt.Errorf("%w: use the version of prebind that runs in the cluster", decodeErr)
		}
		if x != nil {
			return x, nil
		}
	}
	var status apierrors.APIStatus
	switch {
	case err == nil:
		return nil, nil
	case errors.As(err, &status) && status.Status().Code >= http.StatusInternalServerError:
		return nil, fmt.Errorf("the API server cannot call Prebind; run 'prebind status': %w", err)
	default:
		return nil, fmt.Errorf("posting a dry-run Binding: %w", err)
	}
}

// bindingOf returns the Binding that a conforming scheduler posts.
func bindingOf(pod *corev1.Pod, node string, annotations map[string]string) *corev1.Binding {
	return &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, Annotations: annotations},
		Target:     corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node},
	}
}

// warnings collects the API server's warnings. It is safe for concurrent use.
type warnings struct {
	mu   sync.Mutex
	list []string
}

// HandleWarningHeaderWithContext implements rest.WarningHandlerWithContext.
func (l *warnings) HandleWarningHeaderWithContext(_ context.Context, code int, _, text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if code == 299 && text != "" {
		l.list = append(l.list, text)
	}
}

func (l *warnings) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.list
}
