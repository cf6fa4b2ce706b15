// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package resourceclaims

import (
	"context"
	"fmt"
	"reflect"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/test/fakeapi"
	"github.com/prebind/prebind/test/gen"
)

// perNode is the number of devices per node.
const perNode = 8

// sizes are the sizes of clusters in allocated claims.
var sizes = []int{400, 4_000}

// stores is a cache like in production: an indexed store for each kind, whose lists do not
// copy objects.
type stores struct {
	kinds map[reflect.Type]cache.Indexer
}

func newStores() *stores { return &stores{kinds: map[reflect.Type]cache.Indexer{}} }

func (s *stores) of(kind reflect.Type) cache.Indexer {
	if s.kinds[kind] == nil {
		s.kinds[kind] = cache.NewIndexer(cache.MetaNamespaceKeyFunc, indexersOf(kind))
	}
	return s.kinds[kind]
}

func (s *stores) add(o client.Object) { _ = s.of(reflect.TypeOf(o)).Add(o) }

func (s *stores) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	name := key.Name
	if key.Namespace != "" {
		name = key.String()
	}
	found, ok, err := s.of(reflect.TypeOf(into)).GetByKey(name)
	if err != nil || !ok {
		return fakeapi.NotFound(fakeapi.Kind(into), key.Name)
	}
	reflect.ValueOf(into).Elem().Set(reflect.ValueOf(found).Elem())
	return nil
}

func (s *stores) List(_ context.Context, list client.ObjectList, opts ...client.ListOption) error {
	var o client.ListOptions
	o.ApplyOptions(opts)
	items := reflect.ValueOf(list).Elem().FieldByName("Items")
	store := s.of(reflect.PointerTo(items.Type().Elem()))
	var objects []any
	if o.FieldSelector == nil {
		objects = store.List()
	} else {
		var err error
		term := o.FieldSelector.Requirements()[0]
		if objects, err = store.ByIndex(term.Field, term.Value); err != nil {
			return err
		}
	}
	all := reflect.MakeSlice(items.Type(), 0, len(objects))
	for _, object := range objects {
		if value := reflect.ValueOf(object).Elem(); o.Namespace == "" || value.FieldByName("Namespace").String() == o.Namespace {
			all = reflect.Append(all, value)
		}
	}
	items.Set(all)
	return nil
}

// largeCluster returns a cluster with the number of claims, which are allocated and reserved.
func largeCluster(b testing.TB, claims int) (*apiServer, *replica) {
	b.Helper()
	s, cached := newAPI(), newStores()
	put := func(o client.Object) {
		s.Put(o)
		stored, ok := reflect.TypeAssert[client.Object](reflect.New(reflect.TypeOf(o).Elem()))
		require.True(b, ok)
		require.NoError(b, s.get(client.ObjectKeyFromObject(o), stored))
		cached.add(stored)
	}
	for n := 0; n < claims; n += perNode {
		node := fmt.Sprintf("node-%d", n/perNode)
		put(gen.Node(node))
		for i := range perNode {
			put(theClaim(fmt.Sprintf("c%d", n+i), allocated(node, fmt.Sprintf("gpu-%d", i)), reservedTo(fmt.Sprintf("web-%d", n+i))))
		}
	}
	r := newReplica(b, s)
	r.h.Cached = cached
	return s, r
}

// BenchmarkPostBind confirms a bind in a namespace with many claims.
func BenchmarkPostBind(b *testing.B) {
	for _, claims := range sizes {
		b.Run(fmt.Sprintf("claims=%d", claims), func(b *testing.B) {
			s, r := largeCluster(b, claims)
			pod := thePod("web-1", uses("c1"))
			s.Put(pod)
			bc := bind(pod, "node-0", "here-1")
			b.ReportAllocs()
			for b.Loop() {
				r.PostBind(b.Context(), bc)
			}
		})
	}
}

// BenchmarkMarks lists the marks of a cluster in which no bind is in progress.
func BenchmarkMarks(b *testing.B) {
	for _, claims := range sizes {
		b.Run(fmt.Sprintf("claims=%d", claims), func(b *testing.B) {
			_, r := largeCluster(b, claims)
			b.ReportAllocs()
			for b.Loop() {
				_, err := r.Marks(b.Context())
				require.NoError(b, err)
			}
		})
	}
}

// BenchmarkUnsettled lists the marks of a claim with many marks.
func BenchmarkUnsettled(b *testing.B) {
	for _, marks := range []int{1, 2_000} {
		b.Run(fmt.Sprintf("marks=%d", marks), func(b *testing.B) {
			claim := theClaim("c", reservedTo("web"))
			for i := range marks {
				marked(fmt.Sprintf("no-%d", i), "forged-1")(claim)
			}
			b.ReportAllocs()
			for b.Loop() {
				require.Len(b, unsettled(claim), 1)
			}
		})
	}
}

// The cost of reservations and confirmations does not depend on other claims.
func TestCost_DoesNotGrowWithTheCluster(t *testing.T) {
	type cost struct{ allocations, reads float64 }
	measure := func(claims int, do func(r *replica, pod *corev1.Pod)) cost {
		s, r := largeCluster(t, claims)
		pod := thePod("web", uses("mine"))
		s.Put(pod)
		s.Put(theClaim("mine", allocated("node-1", "gpu-x")))
		do(r, pod)
		s.Forget()
		c := cost{allocations: testing.AllocsPerRun(10, func() { do(r, pod) })}
		c.reads = float64(s.Reads())
		return c
	}
	for name, do := range map[string]func(r *replica, pod *corev1.Pod){
		"Reserve": func(r *replica, pod *corev1.Pod) {
			bc := bind(pod, "node-1", "here-1")
			require.NoError(t, r.PreBind(t.Context(), bc))
			require.NoError(t, r.PreBindRollBack(t.Context(), bc))
		},
		"PostBind": func(r *replica, pod *corev1.Pod) { r.PostBind(t.Context(), bind(pod, "node-1", "here-1")) },
		"Marks": func(r *replica, _ *corev1.Pod) {
			_, err := r.Marks(t.Context())
			require.NoError(t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			small, large := measure(sizes[0], do), measure(sizes[1], do)
			assert.LessOrEqual(t, large.allocations, 1.5*small.allocations, "allocations")
			assert.LessOrEqual(t, large.reads, 1.5*small.reads, "read requests to the API server")
		})
	}
}

// indexersOf returns the indexes of a kind.
func indexersOf(kind reflect.Type) cache.Indexers {
	if kind != reflect.TypeFor[*resourcev1.ResourceClaim]() {
		return cache.Indexers{}
	}
	return cache.Indexers{markedIndex: func(o any) ([]string, error) {
		object, ok := o.(client.Object)
		if !ok {
			return nil, fmt.Errorf("%T is not an object", o)
		}
		return indexMarked(object), nil
	}}
}
