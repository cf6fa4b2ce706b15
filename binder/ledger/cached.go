// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
)

// known returns the newest record that this replica has, without a request to the API
// server. It returns nil if the replica has none that can be read.
func (s *Store[K, R]) known(ctx context.Context, key K) *Version[R] {
	if !s.kind.Cached {
		return nil
	}
	object, err := framework.Get(ctx, s.h.Cached, &corev1.ConfigMap{}, s.h.Namespace, s.kind.Name(key))
	if err != nil {
		return nil
	}
	s.mu.Lock()
	if own := s.written[key]; own != nil {
		if object == nil || newer(own, object) {
			object = own
		} else {
			delete(s.written, key)
		}
	}
	s.mu.Unlock()
	if object == nil {
		return nil
	}
	v, err := s.decodeAs(key, object)
	if err != nil {
		return nil
	}
	return v
}

// newer says whether a is a later version of b. It is true if that is unknown.
func newer(a, b *corev1.ConfigMap) bool {
	order, err := resourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
	return a.UID == b.UID && (err != nil || order > 0)
}

func (s *Store[K, R]) forget(key K) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.written, key)
}

// forgetCached forgets own writes that the cache has. Without it, a record would be held
// twice until its next Update, and for good if there is none.
func (s *Store[K, R]) forgetCached(ctx context.Context) {
	s.mu.Lock()
	written := maps.Clone(s.written)
	s.mu.Unlock()
	for key, own := range written {
		cached := &corev1.ConfigMap{}
		err := s.h.Cached.Get(ctx, client.ObjectKeyFromObject(own), cached, client.UnsafeDisableDeepCopy)
		if err != nil || newer(own, cached) {
			continue
		}
		s.mu.Lock()
		if s.written[key] == own {
			delete(s.written, key)
		}
		s.mu.Unlock()
	}
}

// Visit calls visit with up to n records of the cache, in the order of their names. The
// next call continues with the records after them, and begins again after the last one.
// A record that cannot be decoded, or whose visit fails, does not hinder the others: the
// errors are joined. It ends early when the context ends. Use it from one goroutine.
func (s *Store[K, R]) Visit(ctx context.Context, n int, visit func(ctx context.Context, v *Version[R]) error) error {
	objects, err := s.list(ctx, s.h.Cached)
	if err != nil {
		return err
	}
	slices.SortFunc(objects, func(a, b corev1.ConfigMap) int { return strings.Compare(a.Name, b.Name) })
	after, _ := slices.BinarySearchFunc(objects, s.visited+"\x00", func(o corev1.ConfigMap, name string) int { return strings.Compare(o.Name, name) })
	var errs []error
	for i := range min(n, len(objects)) {
		if ctx.Err() != nil {
			errs = append(errs, context.Cause(ctx))
			break
		}
		object := &objects[(after+i)%len(objects)]
		s.visited = object.Name
		v, err := s.decode(object)
		if err == nil {
			err = visit(ctx, v)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
