// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/compact"
	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/gen"
	"github.com/prebind/prebind/test/jsonpatch"
)

// world is an API server in memory: reader, writer, and source of changes. As a
// cache it is as good.
type world struct {
	mu      sync.Mutex
	objects map[string]client.Object
	reads   int
	// patches are those that came, applied is how many of them had an effect.
	patches []patched
	applied int
	// podLists is how often pods were listed.
	podLists int
	// fail, when it is set, may refuse a patch of the object of this name.
	fail func(name string) error
	// err, when it is set, is the answer to every read.
	err error
	hub *framework.Hub
	// free follows the volumes, unless it is paused: then it misses what comes.
	free   *FreeVolumes
	paused bool
	// metadataLists is how often the metadata of all objects of a kind was listed.
	metadataLists int
	// listing, when it is set, is called before each of these lists.
	listing func()
}

// patched is a patch that reached the world.
type patched struct{ kind, name, body string }

func newWorld(objects ...client.Object) *world {
	w := &world{objects: map[string]client.Object{}, hub: framework.NewHub(), free: NewFreeVolumes()}
	for _, o := range objects {
		w.objects[nameOf(o, client.ObjectKeyFromObject(o))] = o
		w.free.OnAdd(o, true)
	}
	return w
}

func kindOf(o client.Object) string {
	if partial, ok := o.(*metav1.PartialObjectMetadata); ok {
		return partial.Kind
	}
	return reflect.TypeOf(o).Elem().Name()
}

func nameOf(o client.Object, key client.ObjectKey) string { return kindOf(o) + " " + key.String() }

func (w *world) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reads++
	if w.err != nil {
		return w.err
	}
	if invalid := content.IsPathSegmentName(key.Name); key.Name == "" || len(invalid) > 0 {
		return fmt.Errorf("no client sends the name %q: %v", key.Name, invalid)
	}
	o, ok := w.objects[nameOf(into, key)]
	if !ok {
		return apierrors.NewNotFound(schema.GroupResource{Resource: kindOf(into)}, key.Name)
	}
	if partial, ok := into.(*metav1.PartialObjectMetadata); ok {
		metadataOf(o).DeepCopyInto(partial)
		return nil
	}
	reflect.ValueOf(into).Elem().Set(reflect.ValueOf(o.DeepCopyObject()).Elem())
	return nil
}

func metadataOf(o client.Object) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID(), ResourceVersion: o.GetResourceVersion(),
	}}
}

// List lists by an index of the plugin, as a cache does, or, as an API server does,
// the pods of a namespace or the metadata of a kind: in pages of two.
func (w *world) List(_ context.Context, into client.ObjectList, options ...client.ListOption) error {
	if _, ok := into.(*metav1.PartialObjectMetadataList); ok && w.listing != nil {
		w.listing()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return w.err
	}
	o := (&client.ListOptions{}).ApplyOptions(options)
	if pods, ok := into.(*corev1.PodList); ok {
		return w.listPods(pods, o)
	}
	if all, ok := into.(*metav1.PartialObjectMetadataList); ok {
		return w.listMetadata(all, o)
	}
	requirements := o.FieldSelector.Requirements()
	for _, index := range indexes() {
		if len(requirements) != 1 || requirements[0].Field != index.field {
			continue
		}
		var found []runtime.Object
		for _, object := range w.objects {
			if slices.Contains(index.keys(object), requirements[0].Value) {
				found = append(found, object.DeepCopyObject())
			}
		}
		return meta.SetList(into, found)
	}
	return fmt.Errorf("%T is listed by an index only", into)
}

func (w *world) listPods(into *corev1.PodList, o *client.ListOptions) error {
	w.podLists++
	if o.Limit == 0 {
		return errors.New("pods are listed in pages")
	}
	for _, name := range slices.Sorted(maps.Keys(w.objects)) {
		pod, ok := w.objects[name].(*corev1.Pod)
		if !ok || pod.Namespace != o.Namespace || name <= o.Continue ||
			!o.FieldSelector.Matches(fields.Set{"spec.nodeName": pod.Spec.NodeName, "status.phase": string(pod.Status.Phase)}) {
			continue
		}
		if len(into.Items) == 2 {
			into.Continue = nameOf(pod, client.ObjectKeyFromObject(&into.Items[1]))
			break
		}
		into.Items = append(into.Items, *pod.DeepCopy())
	}
	return nil
}

func (w *world) listMetadata(into *metav1.PartialObjectMetadataList, o *client.ListOptions) error {
	if o.Limit == 0 {
		return errors.New("metadata is listed in pages")
	}
	if o.Continue == "" {
		w.metadataLists++
	}
	for _, name := range slices.Sorted(maps.Keys(w.objects)) {
		object := w.objects[name]
		if kindOf(object)+"List" != into.Kind || name <= o.Continue {
			continue
		}
		if len(into.Items) == 2 {
			last := &into.Items[1]
			into.Continue = nameOf(object, client.ObjectKeyFromObject(last))
			break
		}
		into.Items = append(into.Items, *metadataOf(object))
	}
	return nil
}

// packing is the world as the cache has it: of each object only what the transforms leave.
type packing struct{ *world }

func (p packing) Get(ctx context.Context, key client.ObjectKey, into client.Object, options ...client.GetOption) error {
	if err := p.world.Get(ctx, key, into, options...); err != nil {
		return err
	}
	found, err := packed(into.DeepCopyObject())
	if err != nil {
		return err
	}
	if found == nil {
		return apierrors.NewNotFound(schema.GroupResource{Resource: kindOf(into)}, key.Name)
	}
	reflect.ValueOf(into).Elem().Set(reflect.ValueOf(found).Elem())
	return nil
}

func (p packing) List(ctx context.Context, into client.ObjectList, options ...client.ListOption) error {
	if err := p.world.List(ctx, into, options...); err != nil {
		return err
	}
	all, err := meta.ExtractList(into)
	if err != nil {
		return err
	}
	var seen []runtime.Object
	for _, o := range all {
		found, err := packed(o)
		if err != nil {
			return err
		}
		if found != nil {
			seen = append(seen, found)
		}
	}
	return meta.SetList(into, seen)
}

// packed is what a reader of the cache gets instead of the object, nil for nothing.
func packed(o runtime.Object) (runtime.Object, error) {
	for kind, by := range Caches("") {
		if reflect.TypeOf(kind) != reflect.TypeOf(o) {
			continue
		}
		out, err := by.Transform(o)
		if err != nil {
			return nil, err
		}
		if small, ok := out.(compact.Object); ok {
			if unpacked := small.Unpack(); unpacked != nil {
				return unpacked, nil
			}
			return nil, nil
		}
	}
	return o, nil
}

// Patch does what an API server does with a merge patch that has a
// resourceVersion: it is applied to the version that it names, and to no other.
// Where the world has no such object, the one that is sent counts as it.
func (w *world) Patch(_ context.Context, o client.Object, patch client.Patch, _ ...client.PatchOption) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	body, err := patch.Data(o)
	if err != nil {
		return err
	}
	w.patches = append(w.patches, patched{kind: kindOf(o), name: o.GetName(), body: string(body)})
	if w.fail != nil {
		if err := w.fail(o.GetName()); err != nil {
			return err
		}
	}
	name := nameOf(o, client.ObjectKeyFromObject(o))
	stored := w.objects[name]
	if stored == nil {
		stored = o
	}
	if stored.GetResourceVersion() != o.GetResourceVersion() {
		return apierrors.NewConflict(schema.GroupResource{Resource: kindOf(o)}, o.GetName(), errors.New("it was changed"))
	}
	before, err := json.Marshal(stored)
	if err != nil {
		return err
	}
	after, err := jsonpatch.Apply(before, types.MergePatchType, body)
	if err != nil {
		return err
	}
	reflect.ValueOf(o).Elem().SetZero()
	if err := json.Unmarshal(after, o); err != nil {
		return err
	}
	version, err := strconv.Atoi(o.GetResourceVersion())
	if err != nil {
		return err
	}
	o.SetResourceVersion(strconv.Itoa(version + 100))
	w.applied++
	stored, ok := o.DeepCopyObject().(client.Object)
	if !ok {
		return fmt.Errorf("a %T is no object", o)
	}
	w.objects[name] = stored
	w.free.OnUpdate(nil, stored)
	return nil
}

// put stores an object and tells the hub.
func (w *world) put(o client.Object) {
	w.change(o, func(name string) {
		w.objects[name] = o
		if !w.paused {
			w.free.OnUpdate(nil, o)
		}
	})
}

// remove deletes an object and tells the hub.
func (w *world) remove(o client.Object) {
	w.change(o, func(name string) {
		delete(w.objects, name)
		if _, ok := o.(*corev1.PersistentVolume); ok {
			w.free.OnDelete(o)
		}
	})
}

func (w *world) change(o client.Object, do func(name string)) {
	w.mu.Lock()
	do(nameOf(o, client.ObjectKeyFromObject(o)))
	w.mu.Unlock()
	w.hub.Changed(framework.RefTo(o, o.GetNamespace(), o.GetName()))
}

func (w *world) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.reads
}

// pluginIn returns the plugin whose cache and API server are the same world; the cache packs it.
func pluginIn(t *testing.T, w *world) *Plugin {
	t.Helper()
	return pluginBetween(t, w, w)
}

func pluginBetween(t *testing.T, cached, live *world) *Plugin {
	t.Helper()
	p, err := New(Options{Cached: packing{cached}, Live: live, Writer: live, Changes: cached.hub, Free: cached.free})
	require.NoError(t, err)
	return p
}

// The objects that most of these tests are about: the pod web uses the claim
// data of the class local, whose volumes are found or made on node-a in zone z1.
func thePod(options ...gen.PodOption) *corev1.Pod {
	return gen.Pod("web", append([]gen.PodOption{gen.UID("pod-1"), gen.UsesClaim("data")}, options...)...)
}

func theNode(options ...gen.NodeOption) *corev1.Node {
	return gen.Node("node-a", append([]gen.NodeOption{gen.Zone("z1")}, options...)...)
}

func theClaim(options ...gen.ClaimOption) *corev1.PersistentVolumeClaim {
	return claimNamed("data", options...)
}

func claimNamed(name string, options ...gen.ClaimOption) *corev1.PersistentVolumeClaim {
	return gen.Claim(name, append([]gen.ClaimOption{gen.UID(types.UID("claim-" + name)), gen.Version("10"), gen.OfClass("local")}, options...)...)
}

func volumeNamed(name string, options ...gen.VolumeOption) *corev1.PersistentVolume {
	return gen.Volume(name, append([]gen.VolumeOption{gen.UID(types.UID("volume-" + name)), gen.Version("20"), gen.VolumeOfClass("local")}, options...)...)
}

func contextFor(pod *corev1.Pod) *framework.BindContext {
	return &framework.BindContext{Pod: pod, Node: theNode(), Binding: gen.Binding(pod, "node-a")}
}
