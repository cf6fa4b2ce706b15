// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

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
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/volume"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
)

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
	c, err := cacheFrom(url)
	if err != nil {
		return err
	}
	running := c.start(ctx)
	if !c.waitForSync(ctx) {
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
	running.Wait()
	return nil
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

// someNode returns a node of a managed node pool. The cache removes its images.
func someNode(i int) client.Object {
	node := cluster.Node(fmt.Sprintf("node-%d", i), cluster.InNodePool())
	node.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}
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
