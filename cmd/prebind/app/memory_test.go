// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"net/http/httptest"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/volume"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/plugins/device"
	"github.com/prebind/prebind/internal/assembly"
	"github.com/prebind/prebind/internal/volumes"
	"github.com/prebind/prebind/test/gen"
)

// maxPair is the maximum live heap of a bound claim and its volume, in bytes.
const maxPair = 3200

// TestCache_BoundPairsAreSmall limits the memory of bound claims and their volumes, which use most of the memory of a
// replica.
func TestCache_BoundPairsAreSmall(t *testing.T) {
	const pairs = 5000
	c, heap := cacheOf(t, boundPairs(pairs))
	assert.Less(t, heap/pairs, float64(maxPair), "bytes of live heap for a bound claim and its volume")

	claim, pv := &corev1.PersistentVolumeClaim{}, &corev1.PersistentVolume{}
	require.NoError(t, c.Get(t.Context(), client.ObjectKey{Namespace: "team-7", Name: "data-web-7"}, claim))
	require.NoError(t, c.Get(t.Context(), client.ObjectKey{Name: claim.Spec.VolumeName}, pv))
	assert.True(t, volume.IsVolumeBoundToClaim(pv, claim))
	assert.Equal(t, "node-7", claim.Annotations[volume.AnnSelectedNode])
	assert.Error(t, volume.CheckNodeAffinity(pv, map[string]string{corev1.LabelTopologyZone: "zone-b"}))
	assert.NoError(t, volume.CheckNodeAffinity(pv, map[string]string{corev1.LabelTopologyZone: "zone-1"}))
}

// TestCache_LargeObjects checks that large claims and pending pods of a tenant do not fill the cache.
func TestCache_LargeObjects(t *testing.T) {
	const objects, size = 25, 256 << 10
	large := strings.Repeat("x", size-100)
	all := func(yield func(client.Object) bool) {
		for i := range objects {
			name := fmt.Sprintf("large-%d", i)
			for _, o := range []client.Object{
				gen.Claim(name, gen.Annotation("example.com/note", large), gen.Label("example.com/note", large)),
				gen.Claim("node-"+name, gen.SelectedNode(large)),
				gen.Claim("selector-"+name, gen.Selects("example.com/note", large)),
				gen.Claim("bound-"+name, gen.BoundToVolume(large)),
				gen.Pod(name, gen.Annotation("example.com/note", large)),
			} {
				if !yield(o) {
					return
				}
			}
		}
		_ = yield(gen.Pod("small", gen.Annotation("example.com/note", "kept"))) && yield(gen.Claim("small", gen.SelectedNode("node-a")))
	}
	c, heap := cacheOf(t, all)
	assert.Less(t, heap/(5*objects), 64.0*1024, "bytes of live heap for an object of %d bytes, including buffers of connections", size)

	pod, claim := &corev1.Pod{}, &corev1.PersistentVolumeClaim{}
	require.NoError(t, c.Get(t.Context(), client.ObjectKey{Namespace: gen.DefaultNamespace, Name: "small"}, pod))
	assert.Equal(t, "kept", pod.Annotations["example.com/note"], "annotations of pods are parameters of plugins")
	require.NoError(t, c.Get(t.Context(), client.ObjectKey{Namespace: gen.DefaultNamespace, Name: "small"}, claim))
	assert.Equal(t, "node-a", claim.Annotations[volume.AnnSelectedNode])
	require.NoError(t, c.Get(t.Context(), client.ObjectKey{Namespace: gen.DefaultNamespace, Name: "large-1"}, claim), "the cache contains the claim without its large fields")
	require.NoError(t, c.Get(t.Context(), client.ObjectKey{Namespace: gen.DefaultNamespace, Name: "large-1"}, pod), "the cache contains only the name of the pod")
	require.NoError(t, c.Get(t.Context(), client.ObjectKey{Namespace: gen.DefaultNamespace, Name: "selector-large-1"}, claim))
	assert.Contains(t, claim.Annotations, volumes.TooLarge)
}

// cacheOf returns the shipped cache with these objects, and the live heap that they use.
func cacheOf(t *testing.T, objects iter.Seq[client.Object]) (caches, float64) {
	t.Helper()
	server := httptest.NewServer(streaming(objects))
	t.Cleanup(server.Close)
	c, err := cacheFrom(server.URL)
	require.NoError(t, err)
	before := liveHeap()
	ctx, stop := context.WithCancel(t.Context())
	running := c.start(ctx)
	t.Cleanup(func() {
		stop()
		running.Wait()
	})
	syncing, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	require.True(t, c.waitForSync(syncing), "the cache is filled")
	return c, liveHeap() - before
}

// caches are the shipped informers, by kind.
type caches map[string]*assembly.Informer

// start runs the informers until the context ends.
func (c caches) start(ctx context.Context) *sync.WaitGroup {
	running := &sync.WaitGroup{}
	for _, i := range c {
		running.Go(func() { i.Run(ctx) })
	}
	return running
}

// waitForSync returns whether the informers have all objects before the context ends.
func (c caches) waitForSync(ctx context.Context) bool {
	for _, i := range c {
		if !toolscache.WaitForCacheSync(ctx.Done(), i.HasSynced) {
			return false
		}
	}
	return true
}

func (c caches) Get(_ context.Context, key client.ObjectKey, into client.Object) error {
	found, ok, err := c[framework.KindOf(into)].Store().GetByKey(toolscache.ObjectName(key).String())
	if err == nil && !ok {
		err = apierrors.NewNotFound(schema.GroupResource{}, key.Name)
	}
	if err == nil {
		reflect.ValueOf(into).Elem().Set(reflect.ValueOf(found).Elem())
	}
	return err
}

// cacheFrom returns the shipped caches with the kinds that Prebind watches in every cluster.
func cacheFrom(url string) (caches, error) {
	mapper := meta.NewDefaultRESTMapper(nil)
	for kind, scope := range map[string]meta.RESTScope{
		"Pod": meta.RESTScopeNamespace, "ConfigMap": meta.RESTScopeNamespace, "Node": meta.RESTScopeRoot,
		"PersistentVolumeClaim": meta.RESTScopeNamespace, "PersistentVolume": meta.RESTScopeRoot,
	} {
		mapper.Add(corev1.SchemeGroupVersion.WithKind(kind), scope)
	}
	source := assembly.Source{Config: &rest.Config{Host: url}, HTTP: &http.Client{}, Scheme: clientgoscheme.Scheme, Mapper: mapper}
	all := caches{}
	var err error
	for _, s := range append(device.Registration().Selections("prebind-system", nil), volumes.Claims, volumes.Volumes,
		assembly.KindSelection(&corev1.Pod{}), assembly.KindSelection(&corev1.Node{})) {
		if all[framework.KindOf(s.Example)], err = source.Informer(context.Background(), s, func(error) {}); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func liveHeap() float64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// servedKinds contains the kind of each path that the test servers serve.
var servedKinds = map[string]string{
	"/api/v1/pods": "Pod", "/api/v1/nodes": "Node", "/api/v1/namespaces/prebind-system/configmaps": "ConfigMap",
	"/api/v1/persistentvolumeclaims": "PersistentVolumeClaim", "/api/v1/persistentvolumes": "PersistentVolume",
}

// streaming answers a watch like an API server with streaming lists, which sends all objects first. It creates each object
// when it sends it, so that only the cache keeps objects in the heap.
func streaming(objects iter.Seq[client.Object]) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("sendInitialEvents") != "true" {
			http.Error(w, "only streaming lists are supported", http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		version, events := 0, json.NewEncoder(w)
		for o := range objects {
			version++
			if o.GetObjectKind().GroupVersionKind().Kind != servedKinds[r.URL.Path] {
				continue
			}
			o.SetResourceVersion(strconv.Itoa(1_000_000 + version))
			if events.Encode(map[string]any{"type": "ADDED", "object": o}) != nil {
				return
			}
		}
		_ = events.Encode(map[string]any{"type": "BOOKMARK", "object": map[string]any{
			"apiVersion": "v1", "kind": servedKinds[r.URL.Path],
			"metadata": map[string]any{"resourceVersion": "9000000", "annotations": map[string]string{metav1.InitialEventsAnnotationKey: "true"}},
		}})
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
}

// boundPairs returns bound claims of a StatefulSet with a CSI driver, each with its volume.
func boundPairs(n int) iter.Seq[client.Object] {
	return func(yield func(client.Object) bool) {
		for i := range n {
			claim, pv := boundPair(i)
			if !yield(claim) || !yield(pv) {
				return
			}
		}
	}
}

func boundPair(i int) (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume) {
	uid := fmt.Sprintf("%08x-5f0c-4c6b-9f5c-0f6c5b4f4b0e", i)
	claim := gen.Claim(fmt.Sprintf("data-web-%d", i), gen.InNamespace(fmt.Sprintf("team-%d", i%200)), gen.UID(types.UID(uid)), gen.OfClass("fast-ssd"),
		gen.BoundToVolume("pvc-"+uid), gen.SelectedNode(fmt.Sprintf("node-%d", i%5000)),
		gen.Annotation(volume.AnnBoundByController, "yes"), gen.Annotation(volume.AnnStorageProvisioner, "disk.csi.example.com"),
		gen.Annotation(volume.AnnBetaStorageProvisioner, "disk.csi.example.com"),
		gen.Label("app.kubernetes.io/name", "web"), gen.Label("app.kubernetes.io/instance", "web-production"), gen.Label("app.kubernetes.io/component", "store"))
	claim.CreationTimestamp = metav1.Unix(1_700_000_000, 0)
	claim.Finalizers = []string{"kubernetes.io/pvc-protection"}
	claim.Spec.VolumeMode = new(corev1.PersistentVolumeFilesystem)
	claim.Status.AccessModes, claim.Status.Capacity = claim.Spec.AccessModes, claim.Spec.Resources.Requests
	claim.ManagedFields = managed("kube-controller-manager", "kube-scheduler")

	pv := gen.Volume("pvc-"+uid, gen.UID(types.UID("pv-"+uid)), gen.VolumeOfClass("fast-ssd"), gen.ClaimRef(claim), gen.VolumePhase(corev1.VolumeBound),
		gen.OnNodesWith(corev1.LabelTopologyZone, fmt.Sprintf("zone-%d", i%3)),
		gen.Annotation(volume.AnnDynamicallyProvisioned, "disk.csi.example.com"),
		gen.Annotation("volume.kubernetes.io/provisioner-deletion-secret-name", ""), gen.Annotation("volume.kubernetes.io/provisioner-deletion-secret-namespace", ""),
		gen.VolumeSource(corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
			Driver: "disk.csi.example.com", VolumeHandle: "projects/shop/zones/zone-1/disks/pvc-" + uid, FSType: "ext4",
			VolumeAttributes: map[string]string{"storage.kubernetes.io/csiProvisionerIdentity": "1700000000000-8081-disk.csi.example.com", "type": "ssd"},
		}}))
	pv.CreationTimestamp = metav1.Unix(1_700_000_000, 0)
	pv.Finalizers = []string{"external-provisioner.volume.kubernetes.io/finalizer", "kubernetes.io/pv-protection"}
	pv.Status.LastPhaseTransitionTime = &pv.CreationTimestamp
	pv.ManagedFields = managed("csi-provisioner", "kube-controller-manager")
	return claim, pv
}

func managed(managers ...string) []metav1.ManagedFieldsEntry {
	var entries []metav1.ManagedFieldsEntry
	for _, manager := range managers {
		fields := metav1.NewFieldsV1(`{"f:metadata":{"f:annotations":{".":{},"f:pv.kubernetes.io/bind-completed":{}}},"f:spec":{"f:volumeName":{}}}`)
		entries = append(entries, metav1.ManagedFieldsEntry{
			Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", FieldsType: "FieldsV1", FieldsV1: fields,
		})
	}
	return entries
}
