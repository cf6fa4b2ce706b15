// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/policy"
)

// objects implements policy.Objects for one evaluation of all policies. Policies that read the same objects share them.
type objects struct {
	reader framework.Reader
	// system is Prebind's own namespace. Its objects do not exist for policies.
	system string
	node   string
	// entry is the policy that is being evaluated.
	entry *entry
	found map[readKey]policy.List
}

// readKey identifies a read.
type readKey struct{ selection, value string }

// Read implements policy.Objects.
func (o *objects) Read(ctx context.Context, r *policy.Resource, namespace, name string) (policy.List, error) {
	if err := o.entry.unwatched[r]; err != nil {
		return policy.List{}, err
	}
	s, value := o.entry.reads[r], ""
	if r == policy.Namespace {
		s = namespaces
	}
	switch {
	case r.ByName:
		value = strings.TrimPrefix(namespace+"/"+name, "/")
	case r.ByNamespace && r.OnNode:
		value = namespace + "/" + o.node
	case r.ByNamespace:
		value = namespace
	case r.OnNode:
		value = o.node
	}
	key := readKey{selection: s.Name, value: value}
	if read, ok := o.found[key]; ok {
		return read, nil
	}
	all, err := o.list(ctx, s, value)
	if err != nil {
		return policy.List{}, err
	}
	read, err := policy.NewList(all)
	if err == nil {
		o.found[key] = read
	}
	return read, err
}

// list reads the objects of the selection with the value from the cache: at most policy.MaxList.
func (o *objects) list(ctx context.Context, s *framework.Selection, value string) ([]client.Object, error) {
	kind := s.Example.GetObjectKind().GroupVersionKind()
	kind.Kind += "List"
	into := typed[client.ObjectList](kind, &unstructured.UnstructuredList{})
	if err := o.reader.List(ctx, into, s.Where(value), client.Limit(policy.MaxList)); err != nil {
		return nil, err
	}
	var all []client.Object
	err := meta.EachListItem(into, func(item runtime.Object) error {
		if object, ok := item.(client.Object); ok {
			all = append(all, object)
		}
		return nil
	})
	if len(all) < policy.MaxList { // Otherwise, the list can lack objects, which NewList reports.
		all = slices.DeleteFunc(all, func(object client.Object) bool { return o.system != "" && object.GetNamespace() == o.system })
	}
	return all, err
}
