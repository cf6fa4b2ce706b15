// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/gen"
)

// stores is a cache like the one of controller-runtime. Reads copy nothing, and lists use indexes.
type stores struct{ byKind map[string]cache.Indexer }

func newStores(tb testing.TB, objects ...client.Object) *stores {
	tb.Helper()
	s, indexed := &stores{byKind: map[string]cache.Indexer{}}, indexes{}
	require.NoError(tb, SetupIndexes(tb.Context(), indexed))
	for _, o := range objects {
		kind := kindOf(o)
		if s.byKind[kind] == nil {
			s.byKind[kind] = cache.NewIndexer(cache.MetaNamespaceKeyFunc, indexed[kind])
		}
		require.NoError(tb, s.byKind[kind].Add(o))
	}
	return s
}

func (s *stores) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	missing := apierrors.NewNotFound(schema.GroupResource{Resource: kindOf(into)}, key.Name)
	store := s.byKind[kindOf(into)]
	if store == nil {
		return missing
	}
	name := key.Name
	if key.Namespace != "" {
		name = key.String()
	}
	o, ok, err := store.GetByKey(name)
	if err != nil {
		return err
	}
	if !ok {
		return missing
	}
	reflect.ValueOf(into).Elem().Set(reflect.ValueOf(o).Elem())
	return nil
}

func (s *stores) List(_ context.Context, into client.ObjectList, options ...client.ListOption) error {
	by := (&client.ListOptions{}).ApplyOptions(options).FieldSelector.Requirements()[0]
	kind := kindOfList(into)
	if s.byKind[kind] == nil {
		return nil
	}
	found, err := s.byKind[kind].ByIndex(by.Field, by.Value)
	if err != nil {
		return err
	}
	objects := make([]runtime.Object, 0, len(found))
	for _, o := range found {
		objects = append(objects, o.(runtime.Object)) //nolint:errcheck // All of them are objects.
	}
	return meta.SetList(into, objects)
}

func kindOfList(list client.ObjectList) string {
	name := reflect.TypeOf(list).Elem().Name()
	return name[:len(name)-len("List")]
}

// places are options for free volumes: local volumes of 1,000 nodes, volumes of three zones, and
// volumes that every node can use.
var places = map[string]func(i int) gen.VolumeOption{
	"local": func(i int) gen.VolumeOption { return gen.OnNode(fmt.Sprintf("node-%d", i%1000)) },
	"zonal": func(i int) gen.VolumeOption {
		return gen.OnNodesWith(corev1.LabelTopologyZone, fmt.Sprintf("z%d", i%3))
	},
	"anywhere": func(int) gen.VolumeOption { return gen.VolumeAccessModes(corev1.ReadWriteOnce) },
}

// matcher returns the PreFlight of a pod whose claim gets a free volume. The class has this many
// other free volumes.
func matcher(tb testing.TB, place string, volumes int) func() {
	tb.Helper()
	node := gen.Node("node-7", gen.Zone("z1"))
	objects := []client.Object{theClaim(), node, gen.StorageClass("local", volume.NotSupportedProvisioner)}
	for i := range volumes {
		size := gen.Capacity(fmt.Sprintf("%dGi", 1+(i/1000)%10))
		objects = append(objects, volumeNamed(fmt.Sprintf("pv-%d", i), size, places[place](i)))
	}
	s, free := newStores(tb, objects...), NewFreeVolumes()
	for _, o := range objects {
		free.OnAdd(o, true)
	}
	p := New(framework.Handle{Cached: s, Live: s, Changes: framework.NewHub(), Clock: clock.RealClock{}}, free)
	return func() {
		next, err := p.preFlight(tb.Context(), &framework.BindContext{Pod: thePod(), Node: node})
		require.NoError(tb, err)
		require.Equal(tb, framework.Run, next)
	}
}

func BenchmarkMatch(b *testing.B) {
	for _, place := range slices.Sorted(maps.Keys(places)) {
		for _, free := range []int{2_000, 20_000, 50_000} {
			b.Run(fmt.Sprintf("%s/free=%d", place, free), func(b *testing.B) {
				match := matcher(b, place, free)
				b.ReportAllocs()
				for b.Loop() {
					match()
				}
			})
		}
	}
}

// The allocations of a match do not depend on the number of free volumes. BenchmarkMatch measures
// the times.
func TestMatch_DoesNotGrowWithFreeVolumes(t *testing.T) {
	for place := range places {
		few, many := testing.AllocsPerRun(10, matcher(t, place, 1_000)), testing.AllocsPerRun(10, matcher(t, place, 10_000))
		assert.LessOrEqual(t, many, 1.5*few, "%s: allocations with 10,000 volumes and with 1,000", place)
	}
}

// indexes contains the indexes of the cache, by kind.
type indexes map[string]cache.Indexers

// IndexField implements client.FieldIndexer.
func (i indexes) IndexField(_ context.Context, of client.Object, field string, keys client.IndexerFunc) error {
	i[kindOf(of)] = cache.Indexers{field: func(o any) ([]string, error) { return keys(o.(client.Object)), nil }} //nolint:errcheck // All of them are objects.
	return nil
}
