// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/component-helpers/storage/volume"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

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
	c, err := cacheFrom(t.Context(), server.URL)
	require.NoError(t, err)
	before := liveHeap()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Start(ctx) }()
	t.Cleanup(func() {
		stop()
		assert.NoError(t, <-ended)
	})
	syncing, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	require.True(t, c.WaitForCacheSync(syncing), "the cache is filled")
	return c, liveHeap() - before
}

// caches are the shipped caches, by kind.
type caches map[string]cache.Cache

func (c caches) Start(ctx context.Context) error {
	var running errgroup.Group
	for _, one := range c {
		running.Go(func() error { return one.Start(ctx) })
	}
	return running.Wait()
}

func (c caches) WaitForCacheSync(ctx context.Context) bool {
	for _, one := range c {
		if !one.WaitForCacheSync(ctx) {
			return false
		}
	}
	return true
}

func (c caches) Get(ctx context.Context, key client.ObjectKey, into client.Object) error {
	return c[framework.KindOf(into)].Get(ctx, key, into)
}

// cacheFrom returns the shipped caches with the kinds that Prebind watches in every cluster.
func cacheFrom(ctx context.Context, url string) (caches, error) {
	mapper := meta.NewDefaultRESTMapper(nil)
	for kind, scope := range map[string]meta.RESTScope{
		"Pod": meta.RESTScopeNamespace, "ConfigMap": meta.RESTScopeNamespace, "Node": meta.RESTScopeRoot,
		"PersistentVolumeClaim": meta.RESTScopeNamespace, "PersistentVolume": meta.RESTScopeRoot,
	} {
		mapper.Add(corev1.SchemeGroupVersion.WithKind(kind), scope)
	}
	config, options := &rest.Config{Host: url}, assembly.CacheOptions()
	options.Scheme, options.Mapper = clientgoscheme.Scheme, mapper
	all := caches{}
	for _, s := range append(device.Registration().Selections("prebind-system", nil), volumes.Claims, volumes.Volumes,
		assembly.KindSelection(&corev1.Pod{}), assembly.KindSelection(&corev1.Node{})) {
		var err error
		if all[framework.KindOf(s.Example)], _, _, err = assembly.SelectionCache(ctx, config, options, s); err != nil {
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

// limitFor returns the memory limit that the chart sets for this clusterNodes, in bytes.
func limitFor(tb testing.TB, nodes int) int64 {
	tb.Helper()
	text, err := os.ReadFile("../../../charts/prebind/files/sizes.yaml")
	require.NoError(tb, err)
	var sizes map[int]struct{ Resources corev1.ResourceRequirements }
	require.NoError(tb, yaml.Unmarshal(text, &sizes))
	require.Contains(tb, sizes, nodes)
	limits := sizes[nodes].Resources.Limits
	return limits.Memory().Value()
}

// cacheOnly is an environment variable with the address of an API server. The test binary then only fills the
// cache from it and reports its memory.
const cacheOnly = "PREBIND_TEST_CACHE"

func TestMain(m *testing.M) {
	if url := os.Getenv(cacheOnly); url == "" {
		m.Run()
	} else if err := reportCache(url); err != nil {
		fmt.Println(err) // processWith fails to parse it as a report.
	}
}

// usage is the memory of a process with the shipped cache, in bytes.
type usage struct {
	// Peak is the maximum resident memory until the cache is filled. Live is the live heap at that time.
	Peak, Live float64
	// Seconds is the time to fill the cache.
	Seconds float64
}

// inCluster contains the numbers of objects in a cluster.
type inCluster struct {
	pairs, free, nodes, pods, records int
	// size is clusterNodes of the chart.
	size int
	// lists is a cluster whose API server does not stream lists.
	lists bool
}

// BenchmarkReplicaMemory measures the sizing table of docs/performance: the memory of a process with the shipped
// cache and the limit of the chart, by the size of the cluster. The API server of the benchmark sends JSON, which needs more memory
// to decode than protobuf.
func BenchmarkReplicaMemory(b *testing.B) {
	for _, in := range []inCluster{
		{},
		{pairs: 5000}, {pairs: 50000}, {pairs: 50000, lists: true},
		{free: 5000},
		{nodes: 500}, {nodes: 5000},
		{pods: 500}, {pods: 5000},
		{records: 500}, {records: 5000},
		{pairs: 1000, nodes: 500, pods: 500, records: 500, size: 500},
		{pairs: 50000, nodes: 5000, pods: 500, records: 5000},
		{pairs: 50000, nodes: 15000, pods: 10000, records: 5000, size: 15000},
	} {
		limit := limitFor(b, cmp.Or(in.size, 5000))
		name := fmt.Sprintf("volumes=%d/free=%d/nodes=%d/pods=%d/records=%d", in.pairs, in.free, in.nodes, in.pods, in.records)
		if in.lists {
			name += "/lists"
		}
		b.Run(name, func(b *testing.B) {
			var u usage
			for b.Loop() {
				u = processWith(b, in, limit)
				if !in.lists { // docs/performance says how much more memory lists need.
					assert.Less(b, u.Peak, float64(limit), "the kubelet kills a container above its memory limit")
				}
			}
			b.ReportMetric(u.Peak/(1<<20), "peak-MiB")
			b.ReportMetric(u.Live/(1<<20), "live-MiB")
			b.ReportMetric(u.Seconds, "s-to-fill")
		})
	}
}

// processWith runs a process with the memory limit that fills the cache from this cluster.
func processWith(tb testing.TB, in inCluster, limit int64) usage {
	tb.Helper()
	handler, streams := streaming(in.objects()), "true"
	if in.lists {
		handler, streams = listing(in.objects()), "false"
	}
	server := httptest.NewServer(handler)
	defer server.Close()
	self, err := os.Executable()
	require.NoError(tb, err)
	process := exec.CommandContext(tb.Context(), self)
	process.Env = append(os.Environ(), cacheOnly+"="+server.URL, "KUBE_FEATURE_WatchListClient="+streams, fmt.Sprintf("GOMEMLIMIT=%d", limit))
	process.Stderr = os.Stderr
	out, err := process.Output()
	server.CloseClientConnections()
	require.NoError(tb, err)
	var u usage
	require.NoError(tb, json.Unmarshal(out, &u), "%s", out)
	return u
}

// reportCache fills the cache and prints its usage.
func reportCache(url string) error {
	ballast := tuneMemory()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	began := time.Now()
	c, err := cacheFrom(ctx, url)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Start(ctx) }()
	if !c.WaitForCacheSync(ctx) {
		return fmt.Errorf("the cache was not filled: %w", ctx.Err())
	}
	u := usage{Seconds: time.Since(began).Seconds()}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}
	_, peak, _ := strings.Cut(string(status), "VmHWM:")
	if _, err := fmt.Sscan(peak, &u.Peak); err != nil {
		return fmt.Errorf("VmHWM: %w", err)
	}
	u.Peak *= 1 << 10
	runtime.KeepAlive(ballast)
	u.Live = liveHeap()
	if err := json.NewEncoder(os.Stdout).Encode(u); err != nil {
		return err
	}
	cancel()
	return <-ended
}

// listing answers a list like an API server without streaming lists: all objects in one answer. Its watches send nothing.
func listing(objects iter.Seq[client.Object]) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Query().Has("watch") {
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
			return
		}
		kind, separator, items := servedKinds[r.URL.Path], "", json.NewEncoder(w)
		fmt.Fprintf(w, `{"apiVersion": "v1", "kind": "%sList", "metadata": {"resourceVersion": "9000000"}, "items": [`, kind)
		for o := range objects {
			if o.GetObjectKind().GroupVersionKind().Kind != kind {
				continue
			}
			fmt.Fprint(w, separator)
			separator = ","
			if items.Encode(o) != nil {
				return
			}
		}
		fmt.Fprint(w, "]}")
	})
}

func (in inCluster) objects() iter.Seq[client.Object] {
	return func(yield func(client.Object) bool) {
		for o := range boundPairs(in.pairs) {
			if !yield(o) {
				return
			}
		}
		for _, kind := range []struct {
			n    int
			make func(i int) client.Object
		}{{in.free, freeVolume}, {in.free, unboundClaim}, {in.nodes, someNode}, {in.pods, somePod}, {in.records, someRecord}} {
			for i := range kind.n {
				if !yield(kind.make(i)) {
					return
				}
			}
		}
	}
}

// freeVolume returns a volume of a CSI driver that is not bound.
func freeVolume(i int) client.Object {
	_, pv := boundPair(i)
	pv.Spec.ClaimRef, pv.Status.Phase = nil, corev1.VolumeAvailable
	return pv
}

// unboundClaim returns a claim that waits for a volume.
func unboundClaim(i int) client.Object {
	claim, _ := boundPair(i)
	claim.Spec.VolumeName, claim.Status = "", corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending}
	delete(claim.Annotations, volume.AnnBindCompleted)
	return claim
}

// someNode returns a node with typical labels, annotations and conditions, without the fields that the cache removes.
func someNode(i int) client.Object {
	name := fmt.Sprintf("node-%d", i)
	node := gen.Node(name, gen.Zone(fmt.Sprintf("zone-%d", i%3)))
	for key := range 22 {
		metav1.SetMetaDataLabel(&node.ObjectMeta, fmt.Sprintf("node.example.com/label-%d", key), fmt.Sprintf("pool-%d", i%20))
	}
	for key := range 9 {
		metav1.SetMetaDataAnnotation(&node.ObjectMeta, fmt.Sprintf("node.example.com/annotation-%d", key), "true")
	}
	for key := range 3 {
		metav1.SetMetaDataLabel(&node.ObjectMeta, fmt.Sprintf("node.example.com/name-%d", key), name)
		metav1.SetMetaDataAnnotation(&node.ObjectMeta, fmt.Sprintf("node.example.com/agent-%d", key), fmt.Sprintf(`{"driver.example.com":"i-%017x"}`, i))
	}
	node.Spec.ProviderID = fmt.Sprintf("cloud:///zone-%d/i-%017x", i%3, i)
	for c := range 6 {
		node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{
			Type: corev1.NodeConditionType(fmt.Sprintf("Condition%d", c)), Status: corev1.ConditionFalse, Reason: "KubeletHasNoProblem", Message: "kubelet has no problem",
			LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(),
		})
	}
	node.Status.Capacity = corev1.ResourceList{}
	for _, resource := range []corev1.ResourceName{"cpu", "memory", "pods", "ephemeral-storage", "hugepages-1Gi", "hugepages-2Mi", "example.com/gpu"} {
		node.Status.Capacity[resource] = *apiresource.NewQuantity(int64(i%20+1)<<30, apiresource.BinarySI)
	}
	node.Status.Allocatable = node.Status.Capacity
	for _, kind := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeInternalDNS, corev1.NodeHostName} {
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: kind, Address: name + ".internal"})
	}
	node.Status.NodeInfo = corev1.NodeSystemInfo{
		MachineID: name, SystemUUID: name, BootID: name, KernelVersion: "6.12.0-cloud-amd64", OSImage: "Example Linux 2026", ContainerRuntimeVersion: "containerd://2.2.0",
		KubeletVersion: "v1.37.0", OperatingSystem: "linux", Architecture: "amd64",
	}
	for image := range 50 {
		node.Status.Images = append(node.Status.Images, corev1.ContainerImage{Names: []string{fmt.Sprintf("registry.example.com/image-%d", image)}, SizeBytes: 100 << 20})
	}
	return node
}

// somePod returns a pod with two containers and environment variables.
func somePod(i int) client.Object {
	pod := gen.Pod(fmt.Sprintf("web-%d", i), gen.UID(types.UID(fmt.Sprintf("%08x-1111-4c6b-9f5c-0f6c5b4f4b0e", i))), gen.UsesClaim("data"), gen.Label("app.kubernetes.io/name", "web"))
	for n := range 12 {
		pod.Spec.Containers[0].Env = append(pod.Spec.Containers[0].Env, corev1.EnvVar{Name: fmt.Sprintf("SETTING_%d", n), Value: fmt.Sprintf("https://service-%d.shop.svc.cluster.local:8443", n)})
	}
	sidecar := pod.Spec.Containers[0].DeepCopy()
	sidecar.Name = "sidecar"
	pod.Spec.Containers = append(pod.Spec.Containers, *sidecar)
	return pod
}

// someRecord returns the record of a node with eight pods that have one device each.
func someRecord(i int) client.Object {
	node := fmt.Sprintf("node-%d", i)
	record := &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "prebind-system", Name: "prebind-devices-" + node, Labels: map[string]string{"app.kubernetes.io/component": "prebind-device-record"}},
		Data:       map[string]string{"node": node},
	}
	for p := range 8 {
		record.Data[fmt.Sprintf("%08x-%04x-4c6b-9f5c-0f6c5b4f4b0e", i, p)] = fmt.Sprintf(
			`{"pod":"team/train-%d-%d","bound":true,"grants":[{"attempt":"r7x2k-m2p4","devices":{"gpu":{"GPU-5f0c0d38-46ac-4c6b-9f5c-%d":"1"}}}]}`, i, p, p)
	}
	return record
}
