// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package compact lets a cache hold an object in less memory than its type needs. A transform
// of the cache replaces the object by an Object, and readers of the cache get what Unpack
// returns.
package compact

import (
	"time"
	"unique"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Object is what a cache holds instead of an API object. It is immutable. Handlers of the
// informer's events receive it as it is.
type Object struct {
	namespace     unique.Handle[string]
	name, version string
	uid           types.UID
	// unpack is nil for an object that readers do not see.
	unpack func(metav1.ObjectMeta) client.Object
}

// Hide returns what the cache holds instead of an object that is too large or that plugins do not read. Readers of the
// cache do not find it. Events report its changes.
func Hide(o metav1.Object) *Object {
	return &Object{namespace: unique.Make(o.GetNamespace()), name: o.GetName(), version: o.GetResourceVersion()}
}

// Pack returns what the cache holds instead of the object. unpack returns the API object with the metadata, which has
// namespace, name, UID and resourceVersion. If it returns nil, readers do not see the object. It must not refer to the
// object. It keeps strings that many objects share as unique.Handle.
func Pack(o metav1.Object, unpack func(metav1.ObjectMeta) client.Object) *Object {
	packed := Hide(o)
	packed.uid, packed.unpack = o.GetUID(), unpack
	return packed
}

// Transform returns a transform that calls pack for objects of the type. It keeps what is packed already, because an
// informer can transform an object twice.
func Transform[T client.Object](pack func(T) *Object) cache.TransformFunc {
	return func(o any) (any, error) {
		if object, ok := o.(T); ok {
			return pack(object), nil
		}
		return o, nil
	}
}

func (o *Object) meta() metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: o.namespace.Value(), Name: o.name, UID: o.uid, ResourceVersion: o.version}
}

// GetObjectMeta returns at least namespace, name and resourceVersion.
func (o *Object) GetObjectMeta() metav1.Object {
	meta := o.meta()
	return &meta
}

// NewInformer is the NewInformer of controller-runtime's cache options. Readers and indexes of the
// cache see the API objects of what a transform has made an Object.
func NewInformer(lw cache.ListerWatcher, example runtime.Object, resync time.Duration, indexers cache.Indexers) cache.SharedIndexInformer {
	return informer{SharedIndexInformer: cache.NewSharedIndexInformer(lw, example, resync, indexers)}
}

type informer struct{ cache.SharedIndexInformer }

// GetIndexer returns the indexer that the readers of controller-runtime use.
func (i informer) GetIndexer() cache.Indexer {
	return indexer{Indexer: i.SharedIndexInformer.GetIndexer()}
}

// AddIndexers adds index functions, which are called with API objects.
func (i informer) AddIndexers(indexers cache.Indexers) error {
	return i.GetIndexer().AddIndexers(indexers)
}

// indexer unpacks the results of the methods that readers call.
type indexer struct{ cache.Indexer }

// GetByKey returns an API object.
func (i indexer) GetByKey(key string) (any, bool, error) {
	o, found, err := i.Indexer.GetByKey(key)
	if found {
		o = unpack(o)
	}
	return o, found && o != nil, err
}

// List returns API objects.
func (i indexer) List() []any { return unpackAll(i.Indexer.List()) }

// ByIndex returns API objects.
func (i indexer) ByIndex(name, value string) ([]any, error) {
	found, err := i.Indexer.ByIndex(name, value)
	return unpackAll(found), err
}

// AddIndexers adds index functions, which are called with API objects.
func (i indexer) AddIndexers(indexers cache.Indexers) error {
	unpacking := cache.Indexers{}
	for name, keys := range indexers {
		unpacking[name] = func(o any) ([]string, error) {
			if o = unpack(o); o == nil {
				return nil, nil
			}
			return keys(o)
		}
	}
	return i.Indexer.AddIndexers(unpacking)
}

// Unpack returns the API object for an object of an event: the object itself, or what an Object
// unpacks to. It returns nil for an object that readers do not see, and for another type.
func Unpack(o any) client.Object {
	if tombstone, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = tombstone.Obj
	}
	object, _ := unpack(o).(client.Object)
	return object
}

// unpack returns the API object, or nil for one that readers do not see.
func unpack(o any) any {
	packed, ok := o.(*Object)
	if !ok {
		return o
	}
	if packed.unpack == nil {
		return nil
	}
	return packed.unpack(packed.meta())
}

// unpackAll changes the slice, which is the caller's.
func unpackAll(all []any) []any {
	seen := all[:0]
	for _, o := range all {
		if o = unpack(o); o != nil {
			seen = append(seen, o)
		}
	}
	return seen
}
