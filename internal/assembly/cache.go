// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package assembly

import (
	"fmt"
	"unique"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/claimed"
	"github.com/prebind/prebind/internal/volumes"
)

// Prebind only reads pods and nodes: the API server writes annotations and labels with the bind.
//
// +kubebuilder:rbac:groups="",resources=pods;nodes,verbs=get;list;watch

// setUp creates the manager and the caches.
func (a *Assembly) setUp(config *rest.Config) error {
	scheme, err := schemeOf(a.o.Registry.Plugins)
	if err != nil {
		return err
	}
	if a.Manager, err = ctrl.NewManager(config, ctrl.Options{
		Scheme:                 scheme,
		Metrics:                server.Options{BindAddress: "0"},
		HealthProbeBindAddress: "0",
		// Reads of the client are live. Plugins read the selections.
		NewClient: func(config *rest.Config, o client.Options) (client.Client, error) {
			o.Cache = nil
			return client.New(config, o)
		},
	}); err != nil {
		return err
	}
	watching := rest.CopyConfig(a.GetConfig())
	watching.Timeout = 0
	a.source = &Source{Config: watching, Scheme: scheme, Mapper: a.GetRESTMapper()}
	if a.source.Discovery, err = discovery.NewDiscoveryClientForConfigAndClient(a.GetConfig(), a.GetHTTPClient()); err != nil {
		return err
	}
	a.source.HTTP, err = rest.HTTPClientFor(watching)
	return err
}

// schemeOf returns a scheme with the built-in types and those of all plugins.
func schemeOf(plugins []framework.Registration) (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return nil, err
	}
	for _, p := range plugins {
		if p.AddToScheme == nil {
			continue
		}
		if err := p.AddToScheme(scheme); err != nil {
			return nil, fmt.Errorf("PreBind plugin %s: adding its types: %w", p.Name, err)
		}
	}
	return scheme, nil
}

// podKind is the name of the selection of pending pods.
var podKind = framework.KindOf(&corev1.Pod{})

// KindSelection returns the selection with all objects of the kind that Prebind reads: pending pods, and trimmed nodes and
// ResourceClaims. Its name is the kind.
func KindSelection(example client.Object) framework.Selection {
	s := framework.Selection{Name: framework.KindOf(example), Example: example}
	switch example.(type) {
	case *corev1.Pod:
		s.Fields, s.Transform = fields.OneTermEqualSelector("spec.nodeName", ""), framework.Transform(trimPod)
	case *corev1.Node:
		s.Transform = framework.Transform(trimNode)
	case *resourcev1.ResourceClaim:
		s.Transform = framework.Transform(claimed.Trim)
	}
	return s
}

// trimNode removes the fields that use most of the memory of a node and that plugins do not read. Nodes have most of their strings in
// common, so it keeps one copy of each.
func trimNode(node *corev1.Node) *corev1.Node {
	node.ManagedFields, node.Status.Images = nil, nil
	node.Labels, node.Annotations = shared(node.Labels), shared(node.Annotations)
	// Nodes of the same machine type have equal lists, and a list needs more memory than the labels of a node.
	node.Status.Capacity, node.Status.Allocatable = volumes.Share(node.Status.Capacity), volumes.Share(node.Status.Allocatable)
	for i := range node.Status.Conditions {
		c := &node.Status.Conditions[i]
		c.Type, c.Status, c.Reason, c.Message = share(c.Type), share(c.Status), share(c.Reason), share(c.Message)
	}
	return node
}

// share returns the common copy of the string.
func share[T ~string](s T) T { return unique.Make(s).Value() }

// shared returns the map with the common copies of its strings.
func shared(m map[string]string) map[string]string {
	if m == nil {
		return nil
	}
	out := make(map[string]string, len(m))
	for key, value := range m {
		out[share(key)] = share(value)
	}
	return out
}

// maxPod is the maximum size of a pod in the cache, in bytes as the API server stores it. Most pods are much
// smaller. A tenant can create much larger ones.
const maxPod = 64 << 10

// trimPod keeps only the name of a pod that is too large for the cache. Prebind reads these pods from the API server.
func trimPod(pod *corev1.Pod) *corev1.Pod {
	pod.ManagedFields = nil
	if pod.Size() > maxPod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, ResourceVersion: pod.ResourceVersion}}
	}
	return pod
}
