// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"context"
	"errors"
	"reflect"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/compact"
	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/volumes"
	"github.com/prebind/prebind/test/fakeapi"
	"github.com/prebind/prebind/test/gen"
	"github.com/prebind/prebind/test/plugintest"
)

// world is an API server or a cache: a reader, a writer and a source of changes.
type world struct {
	*fakeapi.Connection
	server *fakeapi.Server
	hub    *framework.Hub

	mu sync.Mutex
	// patches contains all patch requests. applied is the number of patches that succeeded.
	patches []patched
	applied int
	// podLists is the number of list requests for pods.
	podLists int
	// fail, if set, can return an error for a patch of the object with the name.
	fail func(name string) error
	// err, if set, is the error of every read.
	err error
	// free is the index of free volumes. It misses changes while paused is true.
	free   *FreeVolumes
	paused bool
	// metadataLists is the number of lists of the metadata of all objects of a kind.
	metadataLists int
	// listing, if set, is called before each of these lists.
	listing func()
}

// patched is a patch request.
type patched struct{ kind, name, body string }

func newWorld(objects ...client.Object) *world {
	w := &world{server: fakeapi.New(), hub: framework.NewHub(), free: NewFreeVolumes()}
	_ = SetupIndexes(context.Background(), w.server)
	w.server.PageSize(2)
	w.server.OnChange(w.changed)
	w.Connection = w.server.Connect()
	w.Before, w.After = w.before, w.after
	for _, o := range objects {
		w.server.Put(o)
		w.free.OnAdd(o, true)
	}
	return w
}

func kindOf(o client.Object) string { return fakeapi.Kind(o) }

// changed notifies the hub and the index of free volumes.
func (w *world) changed(o client.Object, deleted bool) {
	switch _, volume := o.(*corev1.PersistentVolume); {
	case deleted && volume:
		w.free.OnDelete(o)
	case !deleted && !w.paused:
		w.free.OnUpdate(nil, o)
	}
	w.hub.Changed(framework.RefTo(o, o.GetNamespace(), o.GetName()))
}

// before counts a call and returns the error that the test has set.
func (w *world) before(call fakeapi.Call) error {
	// Lists by an index are from the cache. Lists of pods and of metadata are from the API server.
	live := call.Verb == "list" && (call.Kind == "PodList" || call.List.FieldSelector == nil)
	if live && call.Kind != "PodList" && w.listing != nil {
		w.listing()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case call.Verb == "patch":
		w.patches = append(w.patches, patched{kind: call.Kind, name: call.Key.Name, body: call.Patch})
		if w.fail != nil {
			return w.fail(call.Key.Name)
		}
		return nil
	case w.err != nil:
		return w.err
	case live && call.List.Limit == 0:
		return errors.New("lists from the API server must be limited to pages")
	case live && call.Kind == "PodList":
		w.podLists++
	case live && call.List.Continue == "":
		w.metadataLists++
	}
	return nil
}

func (w *world) after(call fakeapi.Call) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if call.Verb == "patch" {
		w.applied++
	}
	return nil
}

// packing is the cache of a world. It holds the objects after the transforms.
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

// packed returns the object as a reader of the cache gets it, or nil if the cache hides it.
func packed(o runtime.Object) (runtime.Object, error) {
	for kind, by := range volumes.Caches("") {
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

// put stores an object and remove deletes it, as another client.
func (w *world) put(o client.Object)    { w.server.Put(o) }
func (w *world) remove(o client.Object) { w.server.Remove(o) }

func (w *world) count() int { return w.server.Reads() }

// writer is a writer to the world that can only patch.
type writer struct {
	client.Writer
	w *world
}

func (w writer) Patch(ctx context.Context, o client.Object, patch client.Patch, options ...client.PatchOption) error {
	return w.w.Patch(ctx, o, patch, options...)
}

// pluginIn returns a plugin with the world as its API server. Its cache contains the packed world.
func pluginIn(w *world) *Plugin { return pluginBetween(w, w) }

func pluginBetween(cached, live *world) *Plugin {
	return New(framework.Handle{
		Cached: packing{cached}, Live: live, Writer: writer{w: live}, Changes: cached.hub, Clock: clock.RealClock{},
	}, cached.free)
}

// preFlight runs Setup and PreFlight like the engine.
func (p *Plugin) preFlight(ctx context.Context, bc *framework.BindContext) (framework.Next, error) {
	return plugintest.PreFlight(ctx, p.h, p, bc)
}

// Most tests use these objects: the pod web uses the claim data of the class local, and node-a is
// in zone z1.
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
