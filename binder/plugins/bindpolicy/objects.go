// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package bindpolicy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/component-helpers/storage/ephemeral"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/policy"
)

// objects implements policy.Objects for one evaluation of all policies. Policies that read the same objects share them.
type objects struct {
	reader framework.Reader
	pod    *corev1.Pod
	node   string
	// reads are the selections of the policy that is being evaluated.
	reads *reads
	// found contains the objects that were read.
	found map[readKey][]client.Object
	// large is the number of objects of resources that were too large for the cache.
	large int
}

const (
	// maxObjects is the maximum number of objects of a resource. More would need too much time and memory in a bind.
	maxObjects = 10_000
	// maxLarge is the maximum number of objects of resources that a bind reads because they are too large for the cache.
	maxLarge = 10
)

// readKey identifies a read.
type readKey struct{ selection, value string }

// list returns the objects of the selection with the value, in the order of namespace and name. There are at most
// maxObjects+1. It returns none if the API server does not serve the kind any more.
func (o *objects) list(ctx context.Context, s *watch, value string) ([]client.Object, error) {
	key := readKey{s.Name, value}
	if found, ok := o.found[key]; ok {
		return found, nil
	}
	about := framework.Object{Kind: framework.KindOf(s.Example), Name: value}
	into := newList(s.Example)
	if into == nil {
		return nil, framework.Internal(about, fmt.Errorf("the kind %s has no list", about.Kind))
	}
	how := []client.ListOption{s.Where(value)}
	if s.Field != framework.ByName {
		how = append(how, client.Limit(maxObjects+1))
	}
	if err := o.reader.List(ctx, into, how...); err != nil && !apierrors.IsNotFound(err) && !meta.IsNoMatchError(err) {
		return nil, framework.FromAPI(about, "listing the objects of a BindPolicy", err)
	}
	var found []client.Object
	if err := meta.EachListItem(into, func(item runtime.Object) error {
		if object, ok := item.(client.Object); ok {
			found = append(found, object)
		}
		return nil
	}); err != nil {
		return nil, framework.Internal(about, err)
	}
	slices.SortFunc(found, func(a, b client.Object) int {
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})
	o.keep(key, found)
	return found, nil
}

// keep records the objects of a read.
func (o *objects) keep(key readKey, found []client.Object) {
	if o.found == nil {
		o.found = map[readKey][]client.Object{}
	}
	o.found[key] = found
}

// whole returns the objects of the selection with the value, and reads those that are too large for the cache from the
// API server.
func (o *objects) whole(ctx context.Context, s *watch, value string) ([]client.Object, error) {
	found, err := o.list(ctx, s, value)
	if err != nil || !slices.ContainsFunc(found, isLarge) {
		return found, err
	}
	all := make([]client.Object, 0, len(found))
	for _, object := range found {
		if isLarge(object) {
			if object, err = o.get(ctx, s, value, object); err != nil {
				return nil, err
			}
		}
		if object != nil {
			all = append(all, object)
		}
	}
	o.keep(readKey{s.Name, value}, all)
	return all, nil
}

// get reads an object of the selection from the API server. It returns nil if it is gone, or not an object with the value
// any more.
func (o *objects) get(ctx context.Context, s *watch, value string, object client.Object) (client.Object, error) {
	about := framework.Object{Kind: framework.KindOf(s.Example), Namespace: object.GetNamespace(), Name: object.GetName()}
	into, ok := s.Example.DeepCopyObject().(client.Object)
	if !ok || o.reads.live == nil {
		return nil, framework.Internal(about, errors.New("an object that is too large for the cache cannot be read"))
	}
	err := o.reads.live.Get(ctx, client.ObjectKeyFromObject(object), into)
	switch {
	case apierrors.IsNotFound(err) || meta.IsNoMatchError(err):
		return nil, nil
	case err != nil:
		return nil, framework.FromAPI(about, "reading an object that is too large for the cache", err)
	case s.ValueOf(into) != value || s.Labels != nil && !s.Labels.Matches(labels.Set(into.GetLabels())):
		return nil, nil
	default:
		return into, nil
	}
}

// Namespace implements policy.Objects.
func (o *objects) Namespace(ctx context.Context) (*corev1.Namespace, error) {
	if o.reads.namespace == nil {
		return nil, undeclared("Namespace")
	}
	found, err := o.whole(ctx, o.reads.namespace, o.pod.Namespace)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	namespace, ok := found[0].(*corev1.Namespace)
	if !ok {
		return nil, undeclared("Namespace")
	}
	return namespace, nil
}

// Claims implements policy.Objects. A claim that has the name of a generic ephemeral volume and does not belong to
// the pod counts as missing.
func (o *objects) Claims(ctx context.Context) (map[string]*corev1.PersistentVolumeClaim, error) {
	if o.reads.claims == nil {
		return nil, undeclared("PersistentVolumeClaim")
	}
	claims := map[string]*corev1.PersistentVolumeClaim{}
	for i := range o.pod.Spec.Volumes {
		v := &o.pod.Spec.Volumes[i]
		var name string
		switch {
		case v.PersistentVolumeClaim != nil:
			name = v.PersistentVolumeClaim.ClaimName
		case v.Ephemeral != nil:
			name = ephemeral.VolumeClaimName(o.pod, v)
		default:
			continue
		}
		found, err := o.whole(ctx, o.reads.claims, o.pod.Namespace+"/"+name)
		if err != nil {
			return nil, err
		}
		claims[v.Name] = nil
		if len(found) == 0 {
			continue
		}
		claim, ok := found[0].(*corev1.PersistentVolumeClaim)
		if ok && (v.Ephemeral == nil || ephemeral.VolumeIsForPod(o.pod, claim) == nil) {
			claims[v.Name] = claim
		}
	}
	return claims, nil
}

// Resource implements policy.Objects.
func (o *objects) Resource(ctx context.Context, r *policy.Resource, namespace, name string) ([]client.Object, error) {
	s, ok := o.reads.resources[r.Name]
	value := ""
	switch {
	case !ok:
		return nil, undeclared(r.Kind.Kind)
	case r.ByName && name == "":
		return nil, nil
	case r.ByName && namespace != "":
		value = namespace + "/" + name
	case r.ByName:
		value = name
	case r.OnNode:
		value = o.node
	}
	found, err := o.list(ctx, s, value)
	if err != nil {
		return nil, err
	}
	if len(found) > maxObjects {
		return nil, &policy.LimitError{Message: fmt.Sprintf("resources.%s has more than %d,000 objects; restrict it with namespace, labelSelector or onNode", r.Name, maxObjects/1000)}
	}
	large := 0
	for _, object := range found {
		if isLarge(object) {
			large++
		}
	}
	if o.large+large > maxLarge {
		return nil, &policy.LimitError{Message: fmt.Sprintf("resources.%s: the policies read more than %d objects over %d KiB in this bind; restrict it with namespace, labelSelector or onNode", r.Name, maxLarge, maxObject>>10)}
	}
	o.large += large
	return o.whole(ctx, s, value)
}

// undeclared returns an error that means a bug: a policy reads more than its Needs.
func undeclared(kind string) error {
	return fmt.Errorf("a BindPolicy reads %s objects that it does not need according to its compiled form", kind)
}
