// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package ledger stores records in ConfigMaps of Prebind's own namespace, where tenants
// cannot change them. A record contains, for example, the device grants of one node.
//
// Every write is a compare-and-swap: it fails if the ConfigMap has changed since it was
// read. Any number of replicas can therefore decide based on a record and write the
// decision, and their decisions never contradict each other.
//
// A plugin defines a Kind of records and opens a Store. Update reads a record, lets the
// plugin change it and writes it, and retries on conflicts.
package ledger

import (
	"context"
	"errors"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
)

// Label is the label of the ConfigMaps that contain records. Its value is Kind.Component.
const Label = "app.kubernetes.io/component"

// ErrChanged means that the record was written or deleted since it was read. Read it again
// and repeat the decision.
var ErrChanged = errors.New("the record has changed since it was read")

// Record is the content of one ConfigMap.
type Record[K comparable] interface {
	// Key identifies the subject of the record, such as a node. It never changes.
	Key() K
	// Encode returns the data of the ConfigMap.
	Encode() (map[string]string, error)
}

// Kind describes the records of one plugin. All fields are required.
type Kind[K comparable, R Record[K]] struct {
	// Component is the value of Label.
	Component string
	// Name returns the name of the ConfigMap.
	Name func(key K) string
	// Decode returns a new record with this data. It must return an error unless it decodes
	// all of the data, because no decision can be based on an incomplete record. See
	// Unreadable.
	Decode func(data map[string]string) (R, error)
	// Missing returns the record of a key that has no ConfigMap: an empty record, or one
	// restored from other objects. Only Update calls it.
	Missing func(ctx context.Context, key K) (R, error)
}

// Store reads and writes the records of one kind. It is safe for concurrent use, except for
// Visit.
type Store[K comparable, R Record[K]] struct {
	h     framework.Handle
	kind  Kind[K, R]
	turns turns[K]
	// visited is the name of the ConfigMap that Visit visited last.
	visited string

	mu sync.Mutex
	// written contains the last writes of this replica that the cache does not contain yet.
	written map[K]*corev1.ConfigMap
}

// Open returns the store of a kind of records. It sends no requests. The cache of the handle
// must contain the ConfigMaps with the label.
func Open[K comparable, R Record[K]](h framework.Handle, kind Kind[K, R]) *Store[K, R] {
	return &Store[K, R]{h: h, kind: kind, turns: turns[K]{of: map[K]*turn{}}, written: map[K]*corev1.ConfigMap{}}
}

// Version is a record as it was last read or written. The caller owns the record. A Version
// that a caller constructs stands for a ConfigMap that does not exist yet.
type Version[R any] struct {
	Record R
	object *corev1.ConfigMap
}

// Object returns the ConfigMap of the record, for errors and waits.
func (s *Store[K, R]) Object(key K) framework.Object {
	return framework.Object{Kind: "ConfigMap", Namespace: s.h.Namespace, Name: s.kind.Name(key)}
}

// Get reads a record through the reader. It returns nil if the record does not exist, and
// an error if it cannot be decoded.
func (s *Store[K, R]) Get(ctx context.Context, reader framework.Reader, key K) (*Version[R], error) {
	object, err := framework.Get(ctx, reader, &corev1.ConfigMap{}, s.h.Namespace, s.kind.Name(key))
	if err != nil || object == nil {
		return nil, err
	}
	return s.decodeAs(key, object)
}

// List reads the records that the options select, through the reader. If some records cannot
// be decoded, List returns the others and an error. The result is nil only if the list
// request failed.
func (s *Store[K, R]) List(ctx context.Context, reader framework.Reader, options ...client.ListOption) ([]*Version[R], error) {
	objects, err := s.list(ctx, reader, options...)
	if err != nil {
		return nil, err
	}
	versions := make([]*Version[R], 0, len(objects))
	var errs []error
	for i := range objects {
		v, err := s.decode(&objects[i])
		if err != nil {
			errs = append(errs, err)
			continue
		}
		versions = append(versions, v)
	}
	return versions, errors.Join(errs...)
}

func (s *Store[K, R]) list(ctx context.Context, reader framework.Reader, options ...client.ListOption) ([]corev1.ConfigMap, error) {
	s.forgetCached(ctx)
	var objects corev1.ConfigMapList
	options = append(options, client.InNamespace(s.h.Namespace), client.MatchingLabels{Label: s.kind.Component}, client.UnsafeDisableDeepCopy)
	if err := reader.List(ctx, &objects, options...); err != nil {
		about := framework.Object{Kind: "ConfigMap", Namespace: s.h.Namespace, Name: s.kind.Component}
		return nil, framework.FromAPI(about, "listing the records of this component", err)
	}
	return objects.Items, nil
}

// Update changes a record. It calls change with the newest record that this replica knows;
// live reports whether that record is from the API server. change reports whether it changed
// the record. If change fails for a record from the cache, or if the write conflicts, Update
// calls change again with the record from the API server. At most one Update per key runs in
// a replica at a time.
//
// If the context ends, Update returns its cause.
func (s *Store[K, R]) Update(ctx context.Context, key K, change func(record R, live bool) (bool, error)) error {
	done, err := s.turns.take(ctx, key)
	if err != nil {
		return err
	}
	defer done()
	if v := s.known(ctx, key); v != nil && ctx.Err() == nil {
		changed, err := change(v.Record, false)
		if err == nil && changed {
			if err = s.Write(ctx, v); err != nil && !errors.Is(err, ErrChanged) {
				return err
			}
		}
		if err == nil {
			return nil
		}
	}
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		v, err := s.live(ctx, key)
		if err != nil {
			return err
		}
		changed, err := change(v.Record, true)
		if err != nil || !changed {
			return err
		}
		if err := s.Write(ctx, v); !errors.Is(err, ErrChanged) {
			return err
		}
	}
}

// live returns the record from the API server.
func (s *Store[K, R]) live(ctx context.Context, key K) (*Version[R], error) {
	v, err := s.Get(ctx, s.h.Live, key)
	if v != nil {
		return v, nil
	}
	s.forget(key)
	if err != nil {
		return nil, err
	}
	record, err := s.kind.Missing(ctx, key)
	return &Version[R]{Record: record}, err
}

// Write writes a version, or returns ErrChanged. Afterwards v is the written version, and
// can be changed and written again.
func (s *Store[K, R]) Write(ctx context.Context, v *Version[R]) error {
	key := v.Record.Key()
	data, err := v.Record.Encode()
	if err != nil {
		return err
	}
	marked := labels.Set{Label: s.kind.Component, "app.kubernetes.io/managed-by": "prebind"}
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: s.h.Namespace, Name: s.kind.Name(key), Labels: marked}, Data: data}
	if v.object == nil {
		err = s.h.Writer.Create(ctx, object)
	} else {
		object = v.object.DeepCopy()
		object.Data = data
		// Caches and lists select records by this label.
		object.Labels = labels.Merge(object.Labels, marked)
		err = s.h.Writer.Update(ctx, object)
	}
	if err != nil {
		s.forget(key)
		if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) && v.object != nil {
			return ErrChanged
		}
		return framework.FromAPI(s.Object(key), "writing it", err)
	}
	v.object = object
	s.mu.Lock()
	defer s.mu.Unlock()
	s.written[key] = object
	return nil
}

// Delete deletes the record, or returns ErrChanged if it has changed or does not exist.
func (s *Store[K, R]) Delete(ctx context.Context, v *Version[R]) error {
	key := v.Record.Key()
	done, err := s.turns.take(ctx, key)
	if err != nil {
		return err
	}
	defer done()
	s.forget(key)
	err = s.h.Writer.Delete(ctx, v.object.DeepCopy(), client.Preconditions{UID: &v.object.UID, ResourceVersion: &v.object.ResourceVersion})
	switch {
	case err == nil:
		return nil
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return ErrChanged
	default:
		return framework.FromAPI(s.Object(key), "deleting it", err)
	}
}
