// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
)

// Full size of BenchmarkScale.
var (
	fullNodes   = flag.Int("scale-nodes", 5000, "nodes of BenchmarkScale")
	fullClaims  = flag.Int("scale-claims", 10000, "Number of claims with their volumes for BenchmarkScale.")
	fullPending = flag.Int("scale-pending", 500, "Number of pending pods for BenchmarkScale.")
	fullRunning = flag.String("scale-running", "0,20000,50000", "Numbers of running pods for BenchmarkScale, ascending and separated by commas.")
	fullSettle  = flag.Duration("scale-settle", 150*time.Second, "Time before BenchmarkScale reads the memory of a process. The Go runtime returns memory gradually.")
)

// informer is the variant that keeps all pods in memory.
const informer = "informer"

// scale is the size of a cluster.
type scale struct {
	nodes, claims, pending int
	// running contains the numbers of running pods, ascending.
	running []int
	settle  time.Duration
}

// BenchmarkScale measures the resident memory of Prebind, and the time until it is ready, by the number of
// running pods. The baseline is a program that keeps all pods in an ordinary informer. Each loop is a
// complete run: use -benchtime=1x.
func BenchmarkScale(b *testing.B) {
	s := scale{nodes: *fullNodes, claims: *fullClaims, pending: *fullPending, settle: *fullSettle}
	for text := range strings.SplitSeq(*fullRunning, ",") {
		n, err := strconv.Atoi(text)
		require.NoError(b, err, "-scale-running")
		s.running = append(s.running, n)
	}
	r := newRivals(b, cluster.Options{WithoutScheduler: true, WithoutProvisioner: true}, cluster.Nodes("node", 1), prebind)
	for b.Loop() {
		out := &results{name: "scale"}
		require.NoError(b, r.grow(b, out, s))
		require.NoError(b, out.save())
	}
}

// grow fills the cluster step by step, and measures both programs at each step. The number of running pods is
// the round.
func (r *rivals) grow(tb testing.TB, out *results, s scale) error {
	ctx := tb.Context()
	if err := r.addInformer(ctx); err != nil {
		return err
	}
	if err := r.fill(ctx, s); err != nil {
		return err
	}
	had := 0
	for _, running := range s.running {
		err := inParallel(ctx, 32, running-had, func(ctx context.Context, i int) error {
			_, err := r.client.CoreV1().Pods(prebind).Create(ctx, runningPod(had+i, s.nodes), metav1.CreateOptions{})
			return err
		})
		if err != nil {
			return err
		}
		had = running
		tb.Logf("%d pods are running", had)
		if err := r.weigh(ctx, out, running, s.settle); err != nil {
			return err
		}
	}
	return nil
}

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

// fill creates all objects except the running pods. kube-controller-manager is stopped first, because its work
// is not part of the measurement.
func (r *rivals) fill(ctx context.Context, s scale) error {
	if err := r.untilAccounts(ctx, prebind); err != nil {
		return err
	}
	if err := r.cluster.Process(cluster.ControllerManager).Stop(); err != nil {
		return err
	}
	nodes := cluster.Nodes("large", s.nodes)
	core := r.client.CoreV1()
	if err := inParallel(ctx, 32, s.nodes, func(ctx context.Context, i int) error { return r.addNode(ctx, nodes[i]) }); err != nil {
		return err
	}
	if err := inParallel(ctx, 32, s.claims, func(ctx context.Context, i int) error {
		name := fmt.Sprintf("data-%d", i)
		volume := gen.Volume(name)
		volume.Spec.ClaimRef = &corev1.ObjectReference{Namespace: prebind, Name: name}
		if _, err := core.PersistentVolumes().Create(ctx, volume, metav1.CreateOptions{}); err != nil {
			return err
		}
		claim := gen.Claim(name, gen.InNamespace(prebind))
		claim.Spec.VolumeName = name
		_, err := core.PersistentVolumeClaims(prebind).Create(ctx, claim, metav1.CreateOptions{})
		return err
	}); err != nil {
		return err
	}
	_, err := r.create(ctx, prebind, "pending", s.pending)
	return err
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
func (r *rivals) weigh(ctx context.Context, out *results, round int, settle time.Duration) (err error) {
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
	out.add(prebind, round, "live heap MiB", live/(1<<20))
	return err
}

// runningPod returns a pod of typical size: two containers with environment variables, an owner, tolerations
// and a few annotations.
func runningPod(i, nodes int) *corev1.Pod {
	pod := gen.Pod(fmt.Sprintf("web-6d4cf56db6-%05d", i), gen.InNamespace(prebind), gen.BoundTo(fmt.Sprintf("large-%d", i%nodes+1)), gen.EndsAtOnce(),
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
