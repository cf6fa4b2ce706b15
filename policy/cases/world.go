// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cases

import (
	"cmp"
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
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/policy"
)

// now is the time of the evaluation. Expressions cannot read it.
var now = time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)

// world are the objects of a case, in the order of kind, namespace and name.
type world struct{ objects []object }

// object is an object of the cluster, with the type that Prebind's watches have.
type object struct {
	client.Object
	kind schema.GroupVersionKind
}

func (o object) String() string {
	return o.kind.Kind + " " + strings.TrimPrefix(o.GetNamespace()+"/"+o.GetName(), "/")
}

// newWorld merges the objects of a case into those of the file.
func newWorld(shared, own []map[string]any) (*world, error) {
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
			return nil, fmt.Errorf("objects: duplicate object %s", key)
		case exists:
			all[key] = merge(existing, raw)
		default:
			all[key] = runtime.DeepCopyJSON(raw)
			order = append(order, key)
		}
	}
	w := &world{}
	for _, key := range order {
		o, err := typed(all[key])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		w.objects = append(w.objects, o)
	}
	slices.SortFunc(w.objects, func(a, b object) int {
		return cmp.Or(strings.Compare(a.kind.String(), b.kind.String()), strings.Compare(a.GetNamespace(), b.GetNamespace()), strings.Compare(a.GetName(), b.GetName()))
	})
	return w, nil
}

// identity returns kind, namespace and name. It sets the namespace of namespaced core objects to default.
func identity(raw map[string]any) (string, error) {
	u := unstructured.Unstructured{Object: raw}
	if u.GetAPIVersion() == "" || u.GetKind() == "" || u.GetName() == "" {
		return "", errors.New("an object requires apiVersion, kind and metadata.name")
	}
	if kind := u.GroupVersionKind(); u.GetNamespace() == "" && (kind == podKind || kind == claimKind) {
		u.SetNamespace(metav1.NamespaceDefault)
	}
	return u.GetAPIVersion() + " " + u.GetKind() + " " + strings.TrimPrefix(u.GetNamespace()+"/"+u.GetName(), "/"), nil
}

var (
	podKind       = corev1.SchemeGroupVersion.WithKind("Pod")
	claimKind     = corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim")
	nodeKind      = corev1.SchemeGroupVersion.WithKind("Node")
	namespaceKind = corev1.SchemeGroupVersion.WithKind("Namespace")
)

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

// typed returns the object with its Go type if it is a built-in kind. Unknown fields are errors.
func typed(raw map[string]any) (object, error) {
	u := &unstructured.Unstructured{Object: raw}
	kind := u.GroupVersionKind()
	if !scheme.Scheme.Recognizes(kind) {
		return object{Object: u, kind: kind}, nil
	}
	built, err := scheme.Scheme.New(kind)
	if err != nil {
		return object{}, err
	}
	o, ok := built.(client.Object)
	if !ok {
		return object{}, fmt.Errorf("%s is not the kind of an object", kind)
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(raw, o, true); err != nil {
		return object{}, err
	}
	return object{Object: o, kind: kind}, nil
}

// find returns the only object of the kind that matches.
func (w *world) find(kind schema.GroupVersionKind, field string, matches func(client.Object) bool) (client.Object, error) {
	var found []object
	for _, o := range w.objects {
		if o.kind == kind && matches(o) {
			found = append(found, o)
		}
	}
	switch len(found) {
	case 0:
		return nil, fmt.Errorf("%s: objects contain no such %s", field, kind.Kind)
	case 1:
		return found[0].Object, nil
	default:
		return nil, fmt.Errorf("%s: required, because objects contain several: %s and %s", field, found[0], found[1])
	}
}

// subject returns the bind of the case.
func (w *world) subject(c *Case) (*policy.Subject, error) {
	found, err := w.find(podKind, "pod", func(o client.Object) bool {
		if c.Pod == "" {
			pod, ok := o.(object).Object.(*corev1.Pod)
			return ok && pod.Spec.NodeName == ""
		}
		namespace, name, ok := strings.Cut(c.Pod, "/")
		if !ok {
			namespace, name = metav1.NamespaceDefault, c.Pod
		}
		return o.GetNamespace() == namespace && o.GetName() == name
	})
	if err != nil {
		return nil, err
	}
	pod, ok := found.(*corev1.Pod)
	if !ok {
		return nil, fmt.Errorf("pod: unexpected type %T", found)
	}
	found, err = w.find(nodeKind, "node", func(o client.Object) bool { return c.Node == "" || o.GetName() == c.Node })
	if err != nil {
		return nil, err
	}
	node, ok := found.(*corev1.Node)
	if !ok {
		return nil, fmt.Errorf("node: unexpected type %T", found)
	}
	user := authenticationv1.UserInfo{Username: "system:kube-scheduler", Groups: []string{"system:authenticated"}}
	if c.User != nil {
		user = *c.User
	}
	return &policy.Subject{
		Pod: asCached(pod), Node: asCached(node), User: user, DryRun: c.DryRun, Now: now, Since: now.Add(-c.Waited.Duration),
		Binding: &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, Annotations: c.Binding.Annotations, Labels: c.Binding.Labels,
			},
			Target: corev1.ObjectReference{APIVersion: "v1", Kind: nodeKind.Kind, Name: node.Name},
		},
	}, nil
}

// asCached returns a copy without the fields that Prebind's cache drops.
func asCached[T client.Object](o T) T {
	copied, ok := o.DeepCopyObject().(T)
	if !ok {
		return o
	}
	copied.SetManagedFields(nil)
	if node, ok := any(copied).(*corev1.Node); ok {
		node.Status.Images = nil
	}
	return copied
}

// reader reads the objects of a case as a policy's watches would show them.
type reader struct {
	*world
	subject *policy.Subject
}

// Namespace implements policy.Objects. A namespace that the case does not contain has no labels except its
// name, like a new namespace.
func (r *reader) Namespace(context.Context) (*corev1.Namespace, error) {
	name := r.subject.Pod.Namespace
	for _, o := range r.objects {
		if o.kind == namespaceKind && o.GetName() == name {
			return as[*corev1.Namespace](o)
		}
	}
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelMetadataName: name}}}, nil
}

// Claims implements policy.Objects.
func (r *reader) Claims(context.Context) (map[string]*corev1.PersistentVolumeClaim, error) {
	claims := map[string]*corev1.PersistentVolumeClaim{}
	pod := r.subject.Pod
	for _, v := range pod.Spec.Volumes {
		var name string
		switch {
		case v.PersistentVolumeClaim != nil:
			name = v.PersistentVolumeClaim.ClaimName
		case v.Ephemeral != nil:
			name = pod.Name + "-" + v.Name
		default:
			continue
		}
		claims[v.Name] = nil
		for _, o := range r.objects {
			if o.kind != claimKind || o.GetNamespace() != pod.Namespace || o.GetName() != name {
				continue
			}
			claim, err := as[*corev1.PersistentVolumeClaim](o)
			if err != nil {
				return nil, err
			}
			claims[v.Name] = claim
		}
	}
	return claims, nil
}

// Resource implements policy.Objects.
func (r *reader) Resource(_ context.Context, selected *policy.Resource, namespace, name string) ([]client.Object, error) {
	var all []client.Object
	for _, o := range r.objects {
		switch {
		case o.kind != selected.Kind:
		case selected.ByName && (o.GetName() != name || o.GetNamespace() != namespace):
		case selected.Namespace != "" && o.GetNamespace() != selected.Namespace:
		case selected.Labels != nil && !selected.Labels.Matches(labels.Set(o.GetLabels())):
		case selected.OnNode && nodeOf(o.Object) != r.subject.Node.Name:
		default:
			if err := limited(o); err != nil {
				return nil, err
			}
			all = append(all, asCached(o.Object))
		}
	}
	return all, nil
}

// nodeOf returns spec.nodeName.
func nodeOf(o client.Object) string {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return ""
	}
	name, _, _ := unstructured.NestedString(content, "spec", "nodeName")
	return name
}

// as returns the object as a type, as the cache of Prebind holds it.
func as[T client.Object](o object) (T, error) {
	typed, ok := o.Object.(T)
	if !ok {
		return typed, fmt.Errorf("%s: unexpected type %T", o, o.Object)
	}
	return asCached(typed), limited(o)
}

// limited returns an error if the object is too large for policies.
func limited(o object) error {
	if policy.SizeOf(o.Object) > policy.MaxObject {
		return &policy.LimitError{Message: fmt.Sprintf("%s is larger than %d KiB", o, policy.MaxObject>>10)}
	}
	return nil
}
