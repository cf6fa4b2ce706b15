// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cases

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/internal/policy"
	"github.com/prebind/prebind/internal/policy/files"
)

// now is the time of the evaluation. Expressions cannot read it.
var now = time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)

// world are the objects of a case. Built-in kinds have their Go types.
type world []client.Object

// newWorld merges the objects of a case into those of the file.
func newWorld(shared, own []map[string]any) (world, error) {
	all := map[string]map[string]any{}
	var order []string
	for i, raw := range slices.Concat(shared, own) {
		key, err := identity(raw)
		if err != nil {
			return nil, err
		}
		existing, exists := all[key]
		switch {
		case exists && i < len(shared):
			return nil, fmt.Errorf("duplicate object %s", key)
		case exists:
			all[key] = merge(existing, raw)
		default:
			all[key] = runtime.DeepCopyJSON(raw)
			order = append(order, key)
		}
	}
	w := make(world, len(order))
	for i, key := range order {
		o, err := typed(all[key])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		w[i] = o
	}
	return w, nil
}

// identity returns kind, namespace and name. It sets the namespace of objects of namespaced built-in kinds to default.
func identity(raw map[string]any) (string, error) {
	u := unstructured.Unstructured{Object: raw}
	if u.GetNamespace() == "" && policy.IsNamespaced(u.GroupVersionKind()) {
		u.SetNamespace(metav1.NamespaceDefault)
	}
	key := u.GetAPIVersion() + " " + u.GetKind() + " " + strings.TrimPrefix(u.GetNamespace()+"/"+u.GetName(), "/")
	if u.GetAPIVersion() == "" || u.GetKind() == "" || u.GetName() == "" {
		return "", fmt.Errorf("%s: an object requires apiVersion, kind and metadata.name, as strings", key)
	}
	return key, nil
}

// merge returns the object with a JSON merge patch (RFC 7396).
func merge(into, patch map[string]any) map[string]any {
	merged := map[string]any{}
	maps.Copy(merged, runtime.DeepCopyJSON(into))
	for key, value := range patch {
		child, isObject := value.(map[string]any)
		switch {
		case value == nil:
			delete(merged, key)
		case isObject:
			existing, _ := merged[key].(map[string]any)
			merged[key] = merge(existing, child)
		default:
			merged[key] = runtime.DeepCopyJSONValue(value)
		}
	}
	return merged
}

// typed returns the object with its Go type if it is a built-in kind.
func typed(raw map[string]any) (client.Object, error) {
	u := &unstructured.Unstructured{Object: raw}
	if problem := files.KindProblem(u.GroupVersionKind()); problem != "" {
		return nil, errors.New(problem)
	}
	built, _ := scheme.Scheme.New(u.GroupVersionKind())
	o, ok := built.(client.Object)
	if !ok {
		return u, nil
	}
	if problems := files.DecodeStrict(raw, o); len(problems) > 0 {
		return nil, &problems[0]
	}
	return o, nil
}

// only returns the only object of the type that matches. The description is that of objects that match.
func only[T client.Object](w world, field, description string, matches func(T) bool) (only T, err error) {
	var found []string
	for _, o := range w {
		if typed, ok := o.(T); ok && matches(typed) {
			only = typed
			found = append(found, o.GetObjectKind().GroupVersionKind().Kind+" "+strings.TrimPrefix(o.GetNamespace()+"/"+o.GetName(), "/"))
		}
	}
	switch len(found) {
	case 0:
		return only, fmt.Errorf("%s: objects contain no %s", field, description)
	case 1:
		return only, nil
	}
	return only, fmt.Errorf("%s: required, because objects contain several: %s and %s", field, found[0], found[1])
}

// subject returns the bind of the case.
func (w world) subject(c *Case) (*policy.Subject, error) {
	namespace, name, ok := strings.Cut(c.Pod, "/")
	if !ok {
		namespace, name = metav1.NamespaceDefault, c.Pod
	}
	description := "Pod without spec.nodeName"
	if c.Pod != "" {
		description = "Pod " + namespace + "/" + name
	}
	pod, err := only(w, "pod", description, func(p *corev1.Pod) bool {
		return c.Pod == "" && p.Spec.NodeName == "" || p.Namespace == namespace && p.Name == name
	})
	if err != nil {
		return nil, err
	}
	node, err := only(w, "node", strings.TrimSpace("Node "+c.Node), func(n *corev1.Node) bool { return c.Node == "" || n.Name == c.Node })
	if err != nil {
		return nil, err
	}
	// The cache has no other fields. Resources can contain the pod and the node, too.
	pod, node = pod.DeepCopy(), node.DeepCopy()
	pod.TypeMeta, pod.ManagedFields = metav1.TypeMeta{}, nil
	node.TypeMeta, node.ManagedFields, node.Status.Images = metav1.TypeMeta{}, nil, nil
	user := authenticationv1.UserInfo{Username: "system:kube-scheduler", Groups: []string{"system:authenticated"}}
	if c.User != nil {
		user = *c.User
	}
	return &policy.Subject{
		Pod: pod, Node: node, User: user, DryRun: c.DryRun, Now: now, Since: now.Add(-c.Waited.Duration),
		Binding: &corev1.Binding{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Binding"},
			ObjectMeta: metav1.ObjectMeta{
				Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, Annotations: c.Binding.Annotations, Labels: c.Binding.Labels,
			},
			Target: corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node.Name},
		},
	}, nil
}

// reader reads the objects of a case as a policy's watches would show them.
type reader struct {
	world
	node string
}

// Read implements policy.Objects. A Namespace that the case does not contain has no labels except its name, like a new one.
func (r *reader) Read(_ context.Context, selected *policy.Resource, namespace, name string) (policy.List, error) {
	var all []client.Object
	for _, o := range r.world {
		switch {
		case o.GetObjectKind().GroupVersionKind() != selected.Kind:
		case selected.ByName && (o.GetName() != name || o.GetNamespace() != namespace):
		case selected.ByNamespace && o.GetNamespace() != namespace:
		case selected.Namespace != "" && o.GetNamespace() != selected.Namespace:
		case selected.Labels != nil && !selected.Labels.Matches(labels.Set(o.GetLabels())):
		case selected.OnNode && policy.NodeNameOf(o) != r.node:
		default:
			all = append(all, policy.Reduce(o))
		}
	}
	if selected == policy.Namespace && len(all) == 0 {
		all = append(all, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelMetadataName: name}}})
	}
	return policy.NewList(all)
}
