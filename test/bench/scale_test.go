// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
	"github.com/prebind/prebind/test/install"
)

// settle is the time before BenchmarkScale reads the memory of a process. The Go runtime returns memory gradually.
const settle = 150 * time.Second

// informer is the webhook that keeps all pods in memory.
const informer = "informer"

// standing is the namespace of the objects that are not bound during BenchmarkScale.
const standing = "standing"

// scale is the size of a cluster.
type scale struct {
	nodes, claims, pending, running, records int
}

// scales are the sizes of BenchmarkScale. Each contains the one before it.
var scales = []scale{
	{nodes: 500, claims: 1_000, pending: 500, running: 5_000, records: 500},
	{nodes: 5_000, claims: 10_000, pending: 500, running: 50_000, records: 5_000},
	{nodes: 15_000, claims: 50_000, pending: 10_000, running: 150_000, records: 5_000},
}

// BenchmarkScale measures by the size of the cluster: the time until Prebind is ready, its memory, the cost of its binds, and of updates
// of nodes. The baseline is a webhook that keeps all pods in an ordinary informer, and binds without a webhook. Each loop is a complete
// run: use -benchtime=1x.
func BenchmarkScale(b *testing.B) {
	p := newPolicyBench(b, 6)
	for b.Loop() {
		memory, binds := &results{name: "scale"}, &results{name: "scale-binds"}
		require.NoError(b, p.grow(b, memory, binds))
		require.NoError(b, memory.save())
		require.NoError(b, binds.save())
	}
}

// grow fills the cluster step by step, and measures at each step. The number of nodes is the round. kube-controller-manager is stopped
// first, because its work is not part of the measurement.
func (p *policyBench) grow(tb testing.TB, memory, binds *results) error {
	ctx := tb.Context()
	if _, err := p.serve(ctx, informer); err != nil {
		return err
	}
	if _, err := p.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: standing}}, metav1.CreateOptions{}); err != nil {
		return err
	}
	if err := cluster.WaitForPods(ctx, p.client, none, standing); err != nil {
		return err
	}
	if err := p.cluster.Process(cluster.ControllerManager).Stop(); err != nil {
		return err
	}
	var was scale
	for _, full := range scales {
		now := scale{
			nodes: part(full.nodes), claims: part(full.claims), pending: part(full.pending), running: part(full.running), records: part(full.records),
		}
		if err := p.fill(ctx, was, now); err != nil {
			return err
		}
		was = now
		tb.Logf("%+v", now)
		if err := p.limitMemory(full.nodes); err != nil {
			return err
		}
		if err := p.weighAll(ctx, memory, now.nodes, prebind, informer); err != nil {
			return err
		}
		for _, variant := range []string{none, prebind} {
			if err := p.round(ctx, binds, variant, now.nodes, size{warmUp: 300, alone: 300, together: 1500, clients: 4}); err != nil {
				return err
			}
		}
	}
	return nil
}

// limitMemory sets the memory limit that the chart sets for clusterNodes.
func (p *policyBench) limitMemory(clusterNodes int) error {
	text, err := os.ReadFile("../../charts/prebind/files/sizes.yaml")
	if err != nil {
		return err
	}
	var sizes map[int]struct{ Resources corev1.ResourceRequirements }
	if err := yaml.Unmarshal(text, &sizes); err != nil {
		return err
	}
	limits := sizes[clusterNodes].Resources.Limits
	p.processes[prebind].Setenv("GOMEMLIMIT", fmt.Sprint(limits.Memory().Value()))
	return nil
}

// part is the fraction of the size that is asked for.
func part(full int) int { return max(1, int(*growthPart*float64(full))) }

// fill creates the objects that the smaller cluster lacks.
func (r *rivals) fill(ctx context.Context, was, now scale) error {
	core := r.client.CoreV1()
	nodes, running := cluster.Nodes("large", now.nodes, cluster.InNodePool()), make([]*corev1.Pod, now.running-was.running)
	err := errors.Join(
		inParallel(ctx, 32, now.nodes-was.nodes, func(ctx context.Context, i int) error { return r.addNode(ctx, nodes[was.nodes+i]) }),
		inParallel(ctx, 32, now.nodes-was.nodes, func(ctx context.Context, i int) error {
			_, err := r.client.StorageV1().CSINodes().Create(ctx, csiNode(large(was.nodes+i)), metav1.CreateOptions{})
			return err
		}),
		inParallel(ctx, 32, now.claims-was.claims, func(ctx context.Context, i int) error {
			name := fmt.Sprintf("data-%d", was.claims+i)
			volume := gen.Volume(name)
			volume.Spec.ClaimRef = &corev1.ObjectReference{Namespace: standing, Name: name}
			if _, err := core.PersistentVolumes().Create(ctx, volume, metav1.CreateOptions{}); err != nil {
				return err
			}
			claim := gen.Claim(name, gen.InNamespace(standing))
			claim.Spec.VolumeName = name
			_, err := core.PersistentVolumeClaims(standing).Create(ctx, claim, metav1.CreateOptions{})
			return err
		}),
		inParallel(ctx, 32, now.pending-was.pending, func(ctx context.Context, i int) error {
			pod := gen.Pod(fmt.Sprintf("pending-%d", was.pending+i), gen.InNamespace(standing), gen.Scheduler("unscheduled"))
			_, err := core.Pods(standing).Create(ctx, pod, metav1.CreateOptions{})
			return err
		}),
		inParallel(ctx, 32, len(running), func(ctx context.Context, i int) error {
			pod, err := core.Pods(standing).Create(ctx, runningPod(was.running+i, now.nodes), metav1.CreateOptions{})
			// Do not keep 150,000 pods in memory.
			running[i] = gen.Pod(pod.Name, gen.InNamespace(standing), gen.UID(pod.UID), gen.BoundTo(pod.Spec.NodeName))
			return err
		}),
	)
	if err != nil {
		return err
	}
	on := map[string][]*corev1.Pod{}
	for _, pod := range running {
		on[pod.Spec.NodeName] = append(on[pod.Spec.NodeName], pod)
	}
	return inParallel(ctx, 32, now.records-was.records, func(ctx context.Context, i int) error {
		node := large(was.records + i)
		_, err := core.ConfigMaps(install.Namespace).Create(ctx, deviceRecord(node, on[node]), metav1.CreateOptions{})
		return err
	})
}

// images returns the images that a kubelet reports for its node, with the default maximum number.
func images(n int) []corev1.ContainerImage {
	list := make([]corev1.ContainerImage, n)
	for i := range list {
		list[i] = corev1.ContainerImage{
			Names: []string{
				fmt.Sprintf("registry.example.com/shop/service-%d@sha256:%064d", i, i),
				fmt.Sprintf("registry.example.com/shop/service-%d:v1.%d.0", i, i),
			},
			SizeBytes: 100 << 20,
		}
	}
	return list
}

// weighAll starts the processes. It records the time until each is ready, its memory at rest, and its peak memory.
func (p *policyBench) weighAll(ctx context.Context, out *results, round int, processes ...string) (err error) {
	for _, who := range processes {
		began := time.Now()
		process := p.processes[who]
		if err := process.Start(); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, process.Err(), process.Kill()) }()
		if err := process.WaitReady(ctx); err != nil {
			return err
		}
		out.add(who, round, "seconds to ready", time.Since(began).Seconds())
		if err := p.calm(ctx, who); err != nil {
			return err
		}
	}
	if err := cluster.Pause(ctx, settle); err != nil {
		return err
	}
	for _, who := range processes {
		for metric, key := range map[string]string{"resident MiB": "VmRSS", "most resident MiB": "VmHWM"} {
			bytes, err := memory(p.processes[who].PID(), key)
			if err != nil {
				return err
			}
			out.add(who, round, metric, bytes/(1<<20))
		}
	}
	return p.beat(ctx, out, round)
}

// beat measures Prebind's CPU time, in percent of a processor, while each node updates its status every five minutes.
func (r *rivals) beat(ctx context.Context, out *results, nodes int) error {
	const took = 20 * time.Second
	updates := max(1, int(took.Seconds())*nodes/300)
	before, err := r.used(prebind)
	if err != nil {
		return err
	}
	began := time.Now()
	for i := range updates {
		if err := cluster.Pause(ctx, time.Until(began.Add(time.Duration(i+1)*took/time.Duration(updates)))); err != nil {
			return err
		}
		beat := fmt.Appendf(nil, `{"status":{"conditions":[{"type":"Ready","lastHeartbeatTime":%q}]}}`, time.Now().UTC().Format(time.RFC3339))
		if _, err := r.client.CoreV1().Nodes().PatchStatus(ctx, fmt.Sprintf("large-%d", i%nodes+1), beat); err != nil {
			return err
		}
	}
	after, err := r.used(prebind)
	out.add(prebind, nodes, "updates of nodes: processor %", 100*(after.own-before.own)/time.Since(began).Seconds())
	return err
}

// csiNode returns the CSINode of a node with three drivers.
func csiNode(name string) *storagev1.CSINode {
	node := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, driver := range []string{"ebs.csi.example.com", "efs.csi.example.com", "secrets-store.csi.example.com"} {
		node.Spec.Drivers = append(node.Spec.Drivers, storagev1.CSINodeDriver{Name: driver, NodeID: name, TopologyKeys: []string{corev1.LabelTopologyZone}})
	}
	return node
}

// deviceRecord returns the record of a node whose running pods have one device each.
func deviceRecord(node string, running []*corev1.Pod) *corev1.ConfigMap {
	record := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "prebind-devices-" + node, Labels: map[string]string{"app.kubernetes.io/component": "prebind-device-record"}},
		Data:       map[string]string{"node": node},
	}
	for i, pod := range running {
		record.Data[string(pod.UID)] = fmt.Sprintf(
			`{"pod":"%s/%s","bound":true,"grants":[{"attempt":"r7x2k-m2p4","devices":{"gpu":{"GPU-%d":"1"}}}]}`, pod.Namespace, pod.Name, i)
	}
	return record
}

// runningPod returns a pod of typical size: two containers with environment variables, an owner, tolerations
// and a few annotations.
func runningPod(i, nodes int) *corev1.Pod {
	pod := gen.Pod(fmt.Sprintf("web-6d4cf56db6-%05d", i), gen.InNamespace(standing), gen.BoundTo(fmt.Sprintf("large-%d", i%nodes+1)), gen.EndsAtOnce(),
		gen.Label("app.kubernetes.io/name", "web"), gen.Label("app.kubernetes.io/instance", "web-production"), gen.Label("pod-template-hash", "6d4cf56db6"),
		gen.Annotation("kubectl.kubernetes.io/restartedAt", "2026-01-01T00:00:00Z"), gen.Annotation("prometheus.io/scrape", "true"),
		gen.OwnedBy("ReplicaSet", "web-6d4cf56db6", "5f0c0d38-46ac-4c6b-9f5c-0f6c5b4f4b0e"), gen.EmptyDir("tmp"), gen.Tolerates("example.com/spot"))
	var environment []corev1.EnvVar
	for n := range 12 {
		environment = append(environment, corev1.EnvVar{Name: fmt.Sprintf("SETTING_%d", n), Value: fmt.Sprintf("https://service-%d.shop.svc.cluster.local:8443", n)})
	}
	sidecar := pod.Spec.Containers[0].DeepCopy()
	sidecar.Name = "sidecar"
	pod.Spec.Containers = append(pod.Spec.Containers, *sidecar)
	for n := range pod.Spec.Containers {
		pod.Spec.Containers[n].Env = environment
	}
	return pod
}
