// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
	"github.com/prebind/prebind/test/install"
)

// fixed returns arguments that do not depend on the cluster.
func fixed(args []string) func(*cluster.Cluster) ([]string, error) {
	return func(*cluster.Cluster) ([]string, error) { return args, nil }
}

// bound measures the memory of a replica by the number of bound claims, in a cluster of 5,000 nodes. It also
// measures the time until the replica has started and answered its first bind.
func bound() growth {
	debug := ""
	return growth{
		name: "bound", size: 5000, most: 1,
		shipped: shipped{args: func(c *cluster.Cluster) (args []string, err error) {
			debug, err = c.ReserveAddress(context.Background())
			return []string{"--debug-bind-address=" + debug}, err
		}},
		fill: func(ctx context.Context, g *grown, had, n int) error {
			if had == 0 {
				// Both sizes have the same number of nodes. The size without claims measures their cost.
				if err := g.addNodes(ctx, n); err != nil {
					return err
				}
				if err := g.turn(ctx, prebind, func(ctx context.Context) error { return g.weighBound(ctx, debug, 0) }); err != nil {
					return err
				}
			}
			return inParallel(ctx, 48, n-had, func(ctx context.Context, i int) error { return g.boundPair(ctx, had+i) })
		},
		measure: func(ctx context.Context, g *grown, n int) error {
			if err := g.weighBound(ctx, debug, n); err != nil {
				return err
			}
			return g.perPair(n)
		},
	}
}

// weighBound restarts the replica and measures its start, a bind, and its memory.
func (g *grown) weighBound(ctx context.Context, debug string, n int) error {
	process := g.processes[prebind]
	if err := process.Kill(); err != nil {
		return err
	}
	began := time.Now()
	if err := process.Start(); err != nil {
		return err
	}
	if err := process.WaitReady(ctx); err != nil {
		return err
	}
	add := func(metric string, value float64) { g.out.add(prebind, n, metric, value) }
	add("seconds to ready", time.Since(began).Seconds())
	var options []gen.PodOption
	if n > 0 {
		options = append(options, gen.UsesClaim("data-0"))
	}
	pod, err := g.createPod(ctx, fmt.Sprintf("first-%d", n), options...)
	if err != nil {
		return err
	}
	began = time.Now()
	if err := g.bindTo(ctx, pod, large(0), nil); err != nil {
		return fmt.Errorf("a bind right after the start with %d bound claims: %w", n, err)
	}
	add("first bind ms", milliseconds(time.Since(began)))
	for metric, key := range map[string]string{"resident MiB": "VmRSS", "most resident MiB": "VmHWM"} {
		bytes, err := memory(process.PID(), key)
		if err != nil {
			return err
		}
		add(metric, bytes/(1<<20))
	}
	live, err := liveHeap(ctx, g.prebind.Replicas()[0], debug)
	add("live heap MiB", live/(1<<20))
	limit, limitErr := g.memoryLimit(ctx)
	add("limit MiB", limit/(1<<20))
	return errors.Join(err, limitErr)
}

// perPair adds the memory per pair.
func (g *grown) perPair(n int) error {
	value := func(metric string, round int) float64 {
		for _, s := range g.out.samples {
			if s.Metric == metric && s.Round == round {
				return s.Value
			}
		}
		return 0
	}
	for _, of := range []string{"live heap", "resident"} {
		metric := of + " MiB"
		g.out.add(prebind, n, of+" bytes/pair", (value(metric, n)-value(metric, 0))*(1<<20)/float64(n))
	}
	return nil
}

// liveHeap returns the size of the replica's heap after garbage collection, in bytes.
func liveHeap(ctx context.Context, replica *install.Replica, debug string) (float64, error) {
	for range 2 { // A sync.Pool survives one collection.
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+debug+"/debug/pprof/heap?gc=1", nil)
		if err != nil {
			return 0, err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return 0, err
		}
		_, err = io.Copy(io.Discard, response.Body)
		if err := errors.Join(err, response.Body.Close()); err != nil {
			return 0, err
		}
	}
	metrics, err := replica.Metrics(ctx)
	return sum(metrics, "go_memstats_heap_alloc_bytes", ""), err
}

// memoryLimit returns the memory limit of the shipped Deployment, in bytes.
func (g *grown) memoryLimit(ctx context.Context) (float64, error) {
	d, err := g.client.AppsV1().Deployments(install.Namespace).Get(ctx, "prebind", metav1.GetOptions{})
	if err != nil {
		return 0, err
	}
	return float64(d.Spec.Template.Spec.Containers[0].Resources.Limits.Memory().Value()), nil
}

// boundPair creates a claim and its volume as a CSI driver and the PV controller leave them.
// kube-controller-manager is stopped, so no controller changes them.
func (g *grown) boundPair(ctx context.Context, i int) error {
	core, name, pv := g.client.CoreV1(), fmt.Sprintf("data-%d", i), fmt.Sprintf("pvc-%08d-4c6b-9f5c-0f6c5b4f4b0e", i)
	const driver, class = "csi.example.com", "fast"
	zone := fmt.Sprintf("zone-%d", i%3+1)
	options := []gen.ClaimOption{
		gen.InNamespace(prebind), gen.OfClass(class), gen.BoundToVolume(pv),
		gen.Label("app.kubernetes.io/name", "database"), gen.Label("app.kubernetes.io/instance", "database-production"),
		gen.Annotation(volume.AnnBoundByController, "yes"), gen.SelectedNode(large(i % max(g.large, 1))),
		gen.Annotation("volume.beta.kubernetes.io/storage-provisioner", driver), gen.Annotation("volume.kubernetes.io/storage-provisioner", driver),
	}
	made := gen.Claim(name, options...)
	status := made.Status
	status.AccessModes, status.Capacity = made.Spec.AccessModes, made.Spec.Resources.Requests
	claim, err := core.PersistentVolumeClaims(prebind).Create(ctx, made, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	claim.Status = status
	if _, err := core.PersistentVolumeClaims(prebind).UpdateStatus(ctx, claim, metav1.UpdateOptions{}); err != nil {
		return err
	}
	v := gen.Volume(pv, gen.VolumeOfClass(class), gen.OnNodesWith(corev1.LabelTopologyZone, zone), gen.ClaimRef(claim),
		gen.Annotation("pv.kubernetes.io/provisioned-by", driver), gen.Annotation("volume.kubernetes.io/provisioner-deletion-secret-name", ""),
		gen.VolumeSource(corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
			Driver: driver, VolumeHandle: "vol-" + pv, FSType: "ext4",
			VolumeAttributes: map[string]string{"storage.kubernetes.io/csiProvisionerIdentity": "1700000000000-8081-" + driver, "type": "ssd"},
		}}))
	volume, err := core.PersistentVolumes().Create(ctx, v, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	volume.Status.Phase = corev1.VolumeBound
	if _, err := core.PersistentVolumes().UpdateStatus(ctx, volume, metav1.UpdateOptions{}); err != nil && !apierrors.IsConflict(err) {
		return err
	}
	return nil
}
