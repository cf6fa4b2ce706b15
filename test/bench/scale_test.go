// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
)

// settle is the time before BenchmarkScale reads the memory of a process. The Go runtime returns memory gradually.
const settle = 150 * time.Second

// informer is the variant that keeps all pods in memory.
const informer = "informer"

// standing is the namespace of the objects that are not bound during BenchmarkScale.
const standing = "standing"

// scale is the size of a cluster.
type scale struct{ nodes, claims, pending, running int }

// scales are the sizes of BenchmarkScale. Each contains the one before it.
var scales = []scale{
	{nodes: 500, claims: 1_000, pending: 500, running: 5_000},
	{nodes: 5_000, claims: 10_000, pending: 500, running: 50_000},
	{nodes: 15_000, claims: 50_000, pending: 10_000, running: 150_000},
}

// BenchmarkScale measures by the size of the cluster: the time until Prebind is ready, its memory, the cost of its binds, and of updates
// of nodes. The baseline is a program that keeps all pods in an ordinary informer, and binds without a webhook. Each loop is a complete
// run: use -benchtime=1x.
func BenchmarkScale(b *testing.B) {
	r := newRivals(b, cluster.Options{WithoutScheduler: true, WithoutProvisioner: true}, cluster.Nodes("node", 6), none, prebind)
	for b.Loop() {
		memory, binds := &results{name: "scale"}, &results{name: "scale-binds"}
		require.NoError(b, r.grow(b, memory, binds))
		require.NoError(b, memory.save())
		require.NoError(b, binds.save())
	}
}

// grow fills the cluster step by step, and measures at each step. The number of nodes is the round. kube-controller-manager is stopped
// first, because its work is not part of the measurement.
func (r *rivals) grow(tb testing.TB, memory, binds *results) error {
	ctx := tb.Context()
	if err := r.addInformer(ctx); err != nil {
		return err
	}
	if _, err := r.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: standing}}, metav1.CreateOptions{}); err != nil {
		return err
	}
	if err := r.untilAccounts(ctx, none, prebind, standing); err != nil {
		return err
	}
	if err := r.cluster.Process(cluster.ControllerManager).Stop(); err != nil {
		return err
	}
	var was scale
	for _, full := range scales {
		now := scale{nodes: part(full.nodes), claims: part(full.claims), pending: part(full.pending), running: part(full.running)}
		if err := r.fill(ctx, was, now); err != nil {
			return err
		}
		was = now
		tb.Logf("%+v", now)
		if err := r.weigh(ctx, memory, now.nodes); err != nil {
			return err
		}
		for _, variant := range []string{none, prebind} {
			if err := r.round(ctx, binds, variant, now.nodes, size{warmUp: 300, alone: 300, together: 1500, clients: 4}); err != nil {
				return err
			}
		}
	}
	return nil
}

// part is the fraction of the size that is asked for.
func part(full int) int { return max(1, int(*growthPart*float64(full))) }

// addInformer builds the informer and prepares its process.
func (r *rivals) addInformer(ctx context.Context) error {
	binary := filepath.Join(r.cluster.Dir(), "bin", informer)
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", binary, "./informer").CombinedOutput(); err != nil {
		return fmt.Errorf("building the informer: %w\n%s", err, out)
	}
	address, err := r.cluster.ReserveAddress(ctx)
	if err != nil {
		return err
	}
	r.processes[informer], err = cluster.NewProcess(cluster.ProcessOptions{
		Name: informer, Path: binary, LogFile: filepath.Join(r.cluster.Dir(), "logs", "informer.log"),
		Args: []string{"--kubeconfig=" + r.cluster.Kubeconfig(), "--health-probe-bind-address=" + address},
		Health: func(ctx context.Context) error {
			if !cluster.HTTPReady("http://" + address + "/readyz")(ctx) {
				return errors.New("informer is not ready")
			}
			return nil
		},
	})
	return err
}

// fill creates the objects that the smaller cluster lacks.
func (r *rivals) fill(ctx context.Context, was, now scale) error {
	core := r.client.CoreV1()
	nodes := cluster.Nodes("large", now.nodes)
	return errors.Join(
		inParallel(ctx, 32, now.nodes-was.nodes, func(ctx context.Context, i int) error { return r.addNode(ctx, nodes[was.nodes+i]) }),
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
		inParallel(ctx, 32, now.running-was.running, func(ctx context.Context, i int) error {
			_, err := core.Pods(standing).Create(ctx, runningPod(was.running+i, now.nodes), metav1.CreateOptions{})
			return err
		}),
	)
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

// weigh starts both programs. It records the time until each is ready, its memory at rest, and its peak memory.
func (r *rivals) weigh(ctx context.Context, out *results, round int) (err error) {
	both := []string{prebind, informer}
	for _, who := range both {
		began := time.Now()
		process := r.processes[who]
		if err := process.Start(); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, process.Err(), process.Kill()) }()
		if err := process.WaitReady(ctx); err != nil {
			return err
		}
		out.add(who, round, "seconds to ready", time.Since(began).Seconds())
		if err := r.calm(ctx, who); err != nil {
			return err
		}
	}
	if err := pass(ctx, settle); err != nil {
		return err
	}
	for _, who := range both {
		for metric, key := range map[string]string{"resident MiB": "VmRSS", "most resident MiB": "VmHWM"} {
			bytes, err := memory(r.processes[who].PID(), key)
			if err != nil {
				return err
			}
			out.add(who, round, metric, bytes/(1<<20))
		}
	}
	// Resident memory also depends on the time of the last garbage collection.
	live, err := liveHeap(ctx, r.prebind.Replicas()[0])
	if err != nil {
		return err
	}
	out.add(prebind, round, "live heap MiB", live/(1<<20))
	return r.beat(ctx, out, round)
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
		if err := pass(ctx, time.Until(began.Add(time.Duration(i+1)*took/time.Duration(updates)))); err != nil {
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
