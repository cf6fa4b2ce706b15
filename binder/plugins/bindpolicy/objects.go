// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package bindpolicy

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/component-helpers/storage/ephemeral"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/volumes"
	"github.com/prebind/prebind/policy"
)

// The limits of what a policy reads for a bind. More would need too much time and memory.
const (
	// maxObjects is the number of objects of a resource, and maxClaims that of the pod's claims.
	maxObjects = 1_000
	maxClaims  = 100
	// maxSize is the size of all objects together, in bytes as the API server stores them.
	maxSize = 4 << 20
)

// objects implements policy.Objects for one evaluation of all policies. Policies that read the same objects share them.
type objects struct {
	reader framework.Reader
	// system is Prebind's own namespace. Its objects do not exist for policies.
	system string
	pod    *corev1.Pod
	node   string
	// namespace is that of the pod, once it is read, and found contains the other objects that were read.
	namespace *corev1.Namespace
	found     map[readKey]found
	// entry is the policy that is being evaluated, and size that of the objects that it has read.
	entry *entry
	size  int
}

// readKey identifies a read.
type readKey struct{ selection, value string }

// found is the result of a read.
type found struct {
	objects []client.Object
	size    int
}

// evaluates begins the evaluation of a policy.
func (o *objects) evaluates(e *entry) { o.entry, o.size = e, 0 }

// list returns the objects of the selection with the value, in the order of namespace and name. Errors begin with what.
func (o *objects) list(ctx context.Context, s *framework.Selection, what, value string) ([]client.Object, error) {
	if s == nil {
		return nil, fmt.Errorf("%s: the compiled policy does not need it; report the bug with the policy", what)
	}
	if err := o.entry.unwatched[s.Name]; err != nil {
		return nil, err
	}
	key := readKey{s.Name, value}
	read, ok := o.found[key]
	if !ok {
		var err error
		if read.objects, err = o.read(ctx, s, value); err != nil {
			return nil, fmt.Errorf("%s: %w", what, err)
		}
		switch i := slices.IndexFunc(read.objects, isLarge); {
		case len(read.objects) > maxObjects:
			return nil, limit("%s has more than %d objects; restrict it with namespace, labelSelector or onNode", what, maxObjects)
		case i >= 0:
			return nil, limit("%s: %s is larger than %d KiB", what, client.ObjectKeyFromObject(read.objects[i]), policy.MaxObject>>10)
		}
		for _, object := range read.objects {
			read.size += policy.SizeOf(object)
		}
		if o.found == nil {
			o.found = map[readKey]found{}
		}
		o.found[key] = read
	}
	if o.size += read.size; o.size > maxSize {
		return nil, limit("%s: the policy reads more than %d MiB of objects; restrict it with namespace, labelSelector or onNode", what, maxSize>>20)
	}
	return read.objects, nil
}

func limit(format string, args ...any) error {
	return &policy.LimitError{Message: fmt.Sprintf(format, args...)}
}

// read reads the objects of the selection with the value from the cache: at most maxObjects+1.
func (o *objects) read(ctx context.Context, s *framework.Selection, value string) ([]client.Object, error) {
	into := newList(s.Example)
	if into == nil {
		return nil, fmt.Errorf("the kind %s has no list", framework.KindOf(s.Example))
	}
	how := []client.ListOption{s.Where(value)}
	if s.Field != framework.ByName {
		how = append(how, client.Limit(maxObjects+1))
	}
	if err := o.reader.List(ctx, into, how...); err != nil {
		return nil, err
	}
	var all []client.Object
	err := meta.EachListItem(into, func(item runtime.Object) error {
		if object, ok := item.(client.Object); ok && (o.system == "" || object.GetNamespace() != o.system) {
			all = append(all, object)
		}
		return nil
	})
	slices.SortFunc(all, func(a, b client.Object) int {
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})
	return all, err
}

// Namespace implements policy.Objects. The Namespace of a pod exists, so the cache is behind if it lacks it.
func (o *objects) Namespace(ctx context.Context) (*corev1.Namespace, error) {
	if o.namespace == nil {
		found, err := framework.Get(ctx, o.reader, &corev1.Namespace{}, "", o.pod.Namespace)
		if err != nil {
			return nil, err
		}
		o.namespace = found
	}
	switch {
	case o.namespace == nil:
		return nil, fmt.Errorf("the cache does not contain Namespace %s yet", o.pod.Namespace)
	case o.namespace.Size() > policy.MaxObject:
		return nil, limit("Namespace %s is larger than %d KiB", o.pod.Namespace, policy.MaxObject>>10)
	}
	return o.namespace, nil
}

// Claims implements policy.Objects. A claim that has the name of a generic ephemeral volume and does not belong to
// the pod counts as missing.
func (o *objects) Claims(ctx context.Context) (map[string]*corev1.PersistentVolumeClaim, error) {
	if len(volumes.ClaimsOf(o.pod)) > maxClaims {
		return nil, limit("the pod has more than %d claims", maxClaims)
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
		found, err := o.list(ctx, o.entry.reads.claims, "claims", o.pod.Namespace+"/"+name)
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
	value := ""
	switch {
	case r.ByName && name == "":
		return nil, nil
	case r.ByName && namespace != "":
		value = namespace + "/" + name
	case r.ByName:
		value = name
	case r.OnNode:
		value = o.node
	}
	return o.list(ctx, o.entry.reads.resources[r.Name], "resources."+r.Name, value)
}
