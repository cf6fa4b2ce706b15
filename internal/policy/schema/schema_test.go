// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package schema_test

import (
	"encoding/base64"
	"encoding/json"
	"maps"
	"math/rand"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	"k8s.io/apimachinery/pkg/api/resource"
	metafuzzer "k8s.io/apimachinery/pkg/apis/meta/fuzzer"
	kinds "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/prebind/prebind/internal/policy/schema"
)

// absent returns whether expressions cannot see the field: it has no fixed form, or Prebind does not keep it.
func absent(path string) bool {
	for _, suffix := range []string{".metadata.managedFields", "Node.status.images", ".opaque.parameters", ".status.devices[].data", "ControllerRevision.data"} {
		if strings.HasSuffix(path, suffix) {
			return true
		}
	}
	return false
}

// compare checks that an expression sees the JSON form.
func compare(t *testing.T, path string, want any, got ref.Val) {
	t.Helper()
	switch want := want.(type) {
	case map[string]any:
		m, ok := got.(traits.Mapper)
		if !assert.True(t, ok, "%s: %v", path, got) {
			return
		}
		for key, value := range want {
			at := path + "." + key
			found, ok := m.Find(types.String(key))
			switch {
			case value == nil && !ok, !ok && absent(at):
			case assert.True(t, ok, "%s is absent", at):
				compare(t, at, value, found)
			}
		}
		for it := m.Iterator(); it.HasNext() == types.True; {
			key := string(as[types.String](t, it.Next()))
			if _, ok := want[key]; !ok {
				assert.True(t, (!strings.Contains(path, ".") || strings.HasSuffix(path, ".volumeClaimTemplates[]")) && (key == "apiVersion" || key == "kind"), "%s.%s is present", path, key)
			}
		}
	case []any:
		l, ok := got.(traits.Lister)
		if !assert.True(t, ok, "%s: %v", path, got) || !assert.Equal(t, types.Int(len(want)), l.Size(), path) {
			return
		}
		for i, value := range want {
			compare(t, path+"[]", value, l.Get(types.Int(i)))
		}
	case nil:
		// A list or map without omitempty is null in JSON, and empty in expressions.
		if s, ok := got.(traits.Sizer); ok {
			assert.Equal(t, types.IntZero, s.Size(), path)
			return
		}
		assert.True(t, got == types.NullValue || len(as[types.Bytes](t, got)) == 0, path)
	default:
		compareScalar(t, path, want, got)
	}
}

func compareScalar(t *testing.T, path string, want any, got ref.Val) {
	t.Helper()
	switch got := got.(type) {
	case types.Timestamp:
		parsed, err := time.Parse(time.RFC3339Nano, as[string](t, want))
		assert.NoError(t, err, path)
		assert.WithinDuration(t, parsed, got.Time, time.Second, path)
	case types.Duration:
		assert.Equal(t, want, got.Duration.String(), path)
	case types.Bytes:
		assert.Equal(t, want, base64.StdEncoding.EncodeToString(got), path)
	case types.Int:
		assert.Equal(t, as[json.Number](t, want).String(), got.ConvertToType(types.StringType).Value(), path)
	case types.Double:
		f, err := as[json.Number](t, want).Float64()
		assert.NoError(t, err)
		assert.InDelta(t, f, float64(got), 1e-6, path)
	default:
		assert.Equal(t, want, got.Value(), path)
	}
}

// as returns the value with the type that it must have.
func as[T any](t *testing.T, v any) T {
	t.Helper()
	typed, ok := v.(T)
	require.True(t, ok, "%T", v)
	return typed
}

func decode(t *testing.T, o any) map[string]any {
	t.Helper()
	text, err := json.Marshal(o)
	require.NoError(t, err)
	d := json.NewDecoder(strings.NewReader(string(text)))
	d.UseNumber()
	var decoded map[string]any
	require.NoError(t, d.Decode(&decoded))
	return decoded
}

// Expressions see the JSON form of all kinds.
func TestValue_IsTheJSONForm(t *testing.T) {
	filled := fuzzer.FuzzerFor(metafuzzer.Funcs, rand.NewSource(1), serializer.NewCodecFactory(scheme.Scheme)) //nolint:gosec // A test repeats.
	tested := 0
	known := scheme.Scheme.AllKnownTypes()
	for _, kind := range sorted(known) {
		typed := schema.OfKind(kind)
		if typed == nil {
			continue
		}
		tested++
		rounds := 2
		if slices.Contains([]string{"Pod", "Node", "CSINode", "PersistentVolumeClaim", "Namespace", "ResourceSlice"}, kind.Kind) {
			rounds = 20
		}
		t.Run(kind.String(), func(t *testing.T) {
			for range rounds {
				o := reflect.New(known[kind]).Interface()
				filled.Fill(o)
				compare(t, kind.Kind, decode(t, o), typed.Value(o))
			}
			empty := reflect.New(known[kind]).Interface()
			compare(t, kind.Kind, decode(t, empty), typed.Value(empty))
		})
	}
	assert.Greater(t, tested, 100)
}

func sorted(known map[kinds.GroupVersionKind]reflect.Type) []kinds.GroupVersionKind {
	return slices.SortedFunc(maps.Keys(known), func(a, b kinds.GroupVersionKind) int { return strings.Compare(a.String(), b.String()) })
}

// find returns the value at the path, or nil.
func find(v ref.Val, path ...string) ref.Val {
	for _, name := range path {
		m, ok := v.(traits.Mapper)
		if !ok {
			return nil
		}
		if v, ok = m.Find(types.String(name)); !ok {
			return nil
		}
	}
	return v
}

func TestValue_Operations(t *testing.T) {
	strings3 := make([]string, 1, 4)
	strings3[0] = "a"
	list := as[traits.Lister](t, schema.For[[]string]().Value(strings3))
	sum := as[traits.Lister](t, list.Add(types.NewStringList(types.DefaultTypeAdapter, []string{"b"})))
	assert.Equal(t, types.Int(2), sum.Size())
	assert.Empty(t, strings3[:2][1], "an addition does not write to the memory of the object")
	assert.Equal(t, types.True, list.Contains(types.String("a")))
	assert.Equal(t, types.False, list.Contains(types.String("b")))
	assert.True(t, types.IsError(list.Get(types.Int(1))))
	assert.True(t, types.IsError(list.Get(types.String("a"))))
	assert.Equal(t, types.True, list.Equal(types.NewStringList(types.DefaultTypeAdapter, []string{"a"})))
	native, err := list.ConvertToNative(reflect.TypeFor[[]string]())
	require.NoError(t, err)
	assert.Equal(t, []string{"a"}, native)

	modes := as[traits.Lister](t, schema.For[[]corev1.PersistentVolumeAccessMode]().Value([]corev1.PersistentVolumeAccessMode{"ReadWriteOnce"}))
	assert.Equal(t, types.True, modes.Contains(types.String("ReadWriteOnce")), "elements of named types are strings")

	quantities := as[traits.Mapper](t, schema.For[corev1.ResourceList]().Value(corev1.ResourceList{"b": resource.MustParse("1"), "a": resource.MustParse("2")}))
	assert.Equal(t, types.True, quantities.Contains(types.String("a")), "keys of named types are strings")
	var keys []ref.Val
	for it := quantities.Iterator(); it.HasNext() == types.True; {
		keys = append(keys, it.Next())
	}
	assert.Equal(t, []ref.Val{types.String("a"), types.String("b")}, keys, "the order does not change")

	claim := as[traits.Mapper](t, schema.For[map[string]*corev1.PersistentVolumeClaim]().Value(map[string]*corev1.PersistentVolumeClaim{"data": nil}))
	assert.Equal(t, types.NullValue, claim.Get(types.String("data")), "a nil value of a map is null")
	assert.True(t, types.IsError(claim.Get(types.String("other"))))

	node := &storagev1.CSINode{Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: "a"}}}}
	v := schema.For[storagev1.CSINode]().Value(node)
	assert.Equal(t, types.True, v.Equal(schema.For[storagev1.CSINode]().Value(node.DeepCopy())))
	other := node.DeepCopy()
	other.Spec.Drivers[0].Name = "b"
	assert.Equal(t, types.False, v.Equal(schema.For[storagev1.CSINode]().Value(other)))
	assert.True(t, types.IsError(schema.For[storagev1.CSINode]().Value(&corev1.Pod{})), "another Go type is an error")
	assert.Equal(t, types.NullValue, schema.For[corev1.Pod]().Value((*corev1.Pod)(nil)))
}

// A Quantity caches its text, so reading it must not change the object.
func TestValue_DoesNotChangeTheObject(t *testing.T) {
	device := &resourcev1.ResourceSlice{Spec: resourcev1.ResourceSliceSpec{Devices: []resourcev1.Device{{Capacity: map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{
		"memory": {Value: *resource.NewQuantity(1<<30, resource.BinarySI)},
	}}}}}
	v := schema.For[resourcev1.ResourceSlice]().Value(device)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			d := as[traits.Lister](t, find(v, "spec", "devices")).Get(types.IntZero)
			assert.Equal(t, types.String("1Gi"), find(d, "capacity", "memory", "value"))
		})
	}
	wg.Wait()
	assert.Equal(t, *resource.NewQuantity(1<<30, resource.BinarySI), device.Spec.Devices[0].Capacity["memory"].Value)
}

// recursive contains itself.
type recursive struct {
	Name  string      `json:"name"`
	Inner *recursive  `json:"inner,omitempty"`
	List  []recursive `json:"list,omitempty"`
	Any   any         `json:"any,omitempty"`
}

func TestOf(t *testing.T) {
	r := schema.For[recursive]()
	inner, ok := r.Field("inner")
	require.True(t, ok)
	assert.Same(t, r, inner.Type)
	_, ok = r.Field("any")
	assert.False(t, ok, "a field without a fixed form does not exist")
	named, ok := schema.ByName(r.CEL().TypeName())
	require.True(t, ok)
	assert.Same(t, r, named)

	assert.Nil(t, schema.For[any]())
	assert.Nil(t, schema.OfKind(kinds.GroupVersionKind{Version: "v1", Kind: "PodList"}), "lists are not objects")
	assert.Nil(t, schema.OfKind(kinds.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Pod"}))
}

func TestAdapter(t *testing.T) {
	v := schema.Adapter{}.NativeToValue(map[string]any{"b": []any{int64(1)}, "a": nil, "c": map[string]any{"x": 1.5}})
	m := as[traits.Mapper](t, v)
	var keys []ref.Val
	for it := m.Iterator(); it.HasNext() == types.True; {
		keys = append(keys, it.Next())
	}
	assert.Equal(t, []ref.Val{types.String("a"), types.String("b"), types.String("c")}, keys)
	assert.Equal(t, types.NullValue, m.Get(types.String("a")))
	assert.Equal(t, types.True, types.Double(1.5).Equal(find(v, "c", "x")))
	assert.Equal(t, types.Int(1), as[traits.Lister](t, m.Get(types.String("b"))).Get(types.IntZero))
}
