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
	"fmt"
	"hash/maphash"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/resourceversion"
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
	// Encode returns the data of the ConfigMap. It is equal for equal records.
	Encode() (map[string]string, error)
}

// Records returns the selection of the records of a component in the namespace. A plugin with a Store registers it. value is
// Selection.Value: List reads the records with one value, or all.
func Records(component, namespace string, value func(client.Object) string) framework.Selection {
	return framework.Selection{
		Name: component, Example: &corev1.ConfigMap{}, Namespace: namespace, Labels: labels.SelectorFromSet(labels.Set{Label: component}), Value: value,
	}
}

// Kind describes the records of one plugin. All fields are required except Value.
type Kind[K comparable, R Record[K]] struct {
	// Component is the value of Label. Component and Value are those of Records.
	Component string
	Value     func(client.Object) string
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

// Store reads and writes the records of one kind. It is safe for concurrent use.
type Store[K comparable, R Record[K]] struct {
	h       framework.Handle
	kind    Kind[K, R]
	records framework.Selection
	seed    maphash.Seed
	// turns contains, for each key, the ConfigMap as the last Update left it, or nil. An Update takes it out while it runs. Keys with the
	// same hash share a turn.
	turns [256]chan *corev1.ConfigMap
}

// maxKept is the size of a ConfigMap that a store keeps beside the cache, in bytes. Without it, an Update of a record that the cache does not have
// yet reads it from the API server.
const maxKept = 64 << 10

// Open returns the store of a kind of records. It sends no requests.
func Open[K comparable, R Record[K]](h framework.Handle, kind Kind[K, R]) *Store[K, R] {
	s := &Store[K, R]{h: h, kind: kind, records: Records(kind.Component, h.Namespace, kind.Value), seed: maphash.MakeSeed()}
	for i := range s.turns {
		s.turns[i] = make(chan *corev1.ConfigMap, 1)
		s.turns[i] <- nil
	}
	return s
}

// Version is a record as it was last read or written. The caller owns the record. A Version
// that a caller constructs stands for a ConfigMap that does not exist yet.
type Version[R any] struct {
	Record R
	object *corev1.ConfigMap
}

// object returns the ConfigMap of a record, for errors.
func (s *Store[K, R]) object(name string) framework.Object {
	return framework.Object{Kind: "ConfigMap", Namespace: s.h.Namespace, Name: name}
}

// Get reads a record through the reader. It returns nil if the record does not exist, and
// an error if it cannot be decoded.
func (s *Store[K, R]) Get(ctx context.Context, reader framework.Reader, key K) (*Version[R], error) {
	object, err := framework.Get(ctx, reader, &corev1.ConfigMap{}, s.h.Namespace, s.kind.Name(key), s.records)
	if err != nil || object == nil {
		return nil, err
	}
	return s.decodeFor(key, object)
}

// decodeFor decodes the record of the key.
func (s *Store[K, R]) decodeFor(key K, object *corev1.ConfigMap) (*Version[R], error) {
	v, err := s.decode(object)
	if err == nil && v.Record.Key() != key {
		return nil, s.misplaced(object, v.Record.Key(), fmt.Sprintf("not of %s: both have the same ConfigMap name", quote(key)))
	}
	return v, err
}

// List reads the records with the value of Kind.Value through the reader, or all if the value is empty or the reader is the live one. If
// some records cannot be decoded, List returns the others and an error. The result is nil only if the list request failed.
func (s *Store[K, R]) List(ctx context.Context, reader framework.Reader, value string) ([]*Version[R], error) {
	var objects corev1.ConfigMapList
	by := s.records
	if value == "" {
		by.Value = nil
	}
	if err := reader.List(ctx, &objects, by.Where(value), client.UnsafeDisableDeepCopy); err != nil {
		return nil, framework.FromAPI(s.object(s.kind.Component), "listing the records of this component", err)
	}
	versions := make([]*Version[R], 0, len(objects.Items))
	var errs []error
	for i := range objects.Items {
		v, err := s.decode(&objects.Items[i])
		if err != nil {
			errs = append(errs, err)
			continue
		}
		versions = append(versions, v)
	}
	return versions, errors.Join(errs...)
}

func (s *Store[K, R]) decode(object *corev1.ConfigMap) (*Version[R], error) {
	record, err := s.kind.Decode(object.Data)
	for key := range object.BinaryData {
		err = Unreadable(key, errors.New("it is in binaryData"), "move it to data, or delete it")
	}
	if err != nil {
		e := framework.AsError("", err)
		e.Object = s.object(object.Name)
		return nil, e
	}
	if name := s.kind.Name(record.Key()); name != object.Name {
		return nil, s.misplaced(object, record.Key(), "which must be in ConfigMap "+name)
	}
	return &Version[R]{Record: record, object: object}, nil
}

// misplaced returns the error for an operator about the record of another key.
func (s *Store[K, R]) misplaced(object *corev1.ConfigMap, key K, problem string) error {
	return framework.Internal(s.object(object.Name), fmt.Errorf("it contains the record of %s, %s", quote(key), problem)).
		Advise("fix it, or delete it while nothing is being bound")
}

// Update changes a record: it calls change, and writes the record if it has changed. It tries the record of the cache first, or that of
// the last Update if it is newer. That counts only if the write succeeds, which proves that the record was not behind. Otherwise, Update
// calls change with the record from the API server, and again after each conflict. In a replica, at most one Update per key runs at a
// time, so that its binds do not conflict with each other.
//
// If the context ends, Update returns its cause.
func (s *Store[K, R]) Update(ctx context.Context, key K, change func(record R) error) error {
	turn := s.turns[maphash.Comparable(s.seed, key)%uint64(len(s.turns))]
	var last *corev1.ConfigMap
	select {
	case last = <-turn:
		defer func() {
			if last != nil && last.Size() > maxKept {
				last = nil
			}
			turn <- last
		}()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if v, err := s.newest(ctx, key, last); err == nil && v != nil && ctx.Err() == nil {
		if written, err := s.update(ctx, v, change); written && err == nil {
			last = v.object
			return nil
		}
	}
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		v, err := s.Get(ctx, s.h.Live, key)
		if err == nil && v == nil {
			v = &Version[R]{}
			v.Record, err = s.kind.Missing(ctx, key)
		}
		if err != nil {
			return err
		}
		if _, err := s.update(ctx, v, change); !errors.Is(err, ErrChanged) {
			last = v.object
			return err
		}
	}
}

// newest returns the record of the cache, or of last if that is newer: the cache is behind for a moment after each write.
func (s *Store[K, R]) newest(ctx context.Context, key K, last *corev1.ConfigMap) (*Version[R], error) {
	cached, err := s.Get(ctx, s.h.Cached, key)
	if err != nil || last == nil || last.Name != s.kind.Name(key) {
		return cached, err
	}
	if cached != nil {
		if order, err := resourceversion.CompareResourceVersion(last.ResourceVersion, cached.object.ResourceVersion); err != nil || order < 0 {
			return cached, err
		}
	}
	return s.decodeFor(key, last)
}

// update changes a version, and returns whether it had to write it.
func (s *Store[K, R]) update(ctx context.Context, v *Version[R], change func(record R) error) (written bool, err error) {
	before, err := v.Record.Encode()
	if err != nil {
		return false, err
	}
	if err := change(v.Record); err != nil {
		return false, err
	}
	after, err := v.Record.Encode()
	if err != nil || maps.Equal(before, after) {
		return false, err
	}
	return true, s.write(ctx, v, after)
}

// Write writes a version, or returns ErrChanged. Afterwards v is the written version, and
// can be changed and written again.
func (s *Store[K, R]) Write(ctx context.Context, v *Version[R]) error {
	data, err := v.Record.Encode()
	if err != nil {
		return err
	}
	return s.write(ctx, v, data)
}

func (s *Store[K, R]) write(ctx context.Context, v *Version[R], data map[string]string) (err error) {
	marked := labels.Set{Label: s.kind.Component, "app.kubernetes.io/managed-by": "prebind"}
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: s.h.Namespace, Name: s.kind.Name(v.Record.Key()), Labels: marked}, Data: data}
	if v.object == nil {
		err = s.h.Writer.Create(ctx, object)
	} else {
		object = v.object.DeepCopy()
		object.Data = data
		// Caches and lists select records by this label.
		object.Labels = labels.Merge(object.Labels, marked)
		err = s.h.Writer.Update(ctx, object)
	}
	switch {
	case err == nil:
		v.object = object
		return nil
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err) && v.object != nil:
		return ErrChanged
	default:
		return framework.FromAPI(s.object(object.Name), "writing it", err)
	}
}

// Delete deletes the record, or returns ErrChanged if it has changed or does not exist.
func (s *Store[K, R]) Delete(ctx context.Context, v *Version[R]) error {
	err := s.h.Writer.Delete(ctx, v.object.DeepCopy(), client.Preconditions{UID: &v.object.UID, ResourceVersion: &v.object.ResourceVersion})
	switch {
	case err == nil:
		return nil
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return ErrChanged
	default:
		return framework.FromAPI(s.object(v.object.Name), "deleting it", err)
	}
}
