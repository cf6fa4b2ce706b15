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
}

// readKey identifies a read.
type readKey struct{ selection, value string }

// list returns the objects of the selection with the value, in the order of namespace and name.
func (o *objects) list(ctx context.Context, s *framework.Selection, value string) ([]client.Object, error) {
	key := readKey{s.Name, value}
	if found, ok := o.found[key]; ok {
		return found, nil
	}
	about := framework.Object{Kind: framework.KindOf(s.Example), Name: value}
	into := newList(s.Example)
	if into == nil {
		return nil, framework.Internal(about, fmt.Errorf("the kind %s has no list", about.Kind))
	}
	if err := o.reader.List(ctx, into, s.Where(value)); err != nil {
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
	if o.found == nil {
		o.found = map[readKey][]client.Object{}
	}
	o.found[key] = found
	return found, nil
}

// Namespace implements policy.Objects.
func (o *objects) Namespace(ctx context.Context) (*corev1.Namespace, error) {
	if o.reads.namespace == nil {
		return nil, undeclared("Namespace")
	}
	found, err := o.list(ctx, o.reads.namespace, o.pod.Namespace)
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
		found, err := o.list(ctx, o.reads.claims, o.pod.Namespace+"/"+name)
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
	switch {
	case !ok:
		return nil, undeclared(r.Kind.Kind)
	case r.ByName && name == "":
		return nil, nil
	case r.ByName && namespace != "":
		return o.list(ctx, s, namespace+"/"+name)
	case r.ByName:
		return o.list(ctx, s, name)
	case r.OnNode:
		return o.list(ctx, s, o.node)
	default:
		return o.list(ctx, s, "")
	}
}

// undeclared returns an error that means a bug: a policy reads more than its Needs.
func undeclared(kind string) error {
	return fmt.Errorf("a BindPolicy reads %s objects that it does not need according to its compiled form", kind)
}
