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
// server. It returns nil if the replica has no record that can be decoded.
func (s *Store[K, R]) known(ctx context.Context, key K) *Version[R] {
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

// newer reports whether a is a later version of b. It returns true if that is unknown.
func newer(a, b *corev1.ConfigMap) bool {
	order, err := resourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
	return a.UID == b.UID && (err != nil || order > 0)
}

func (s *Store[K, R]) forget(key K) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.written, key)
}

// forgetCached discards own writes that the cache contains. Otherwise the store would keep a
// second copy until the next Update of the key.
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

// Visit calls visit with up to n records of the cache, in the order of their names. The next
// call continues after the last visited record, and starts over at the end. Visit joins the
// errors of records that cannot be decoded and of failed visits, and continues. It stops
// when the context ends. Visit must not be called concurrently.
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
