// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/docs/example/operator"
	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
)

// manifests are the shipped examples of workloads.
const manifests = "../../docs/manifests"

// The shipped workloads run with the strictest Pod Security level, and every container reads its location. The policy rack-awareness is
// in force.
func testManifests(t *testing.T, w *world) {
	prepareForManifests(t, w)
	tests := map[string]struct {
		// pods is the expected number of pods.
		pods int
		// reads is the expected output of each of them, without values that differ per pod.
		reads func(pod *corev1.Pod, node *corev1.Node) map[string]string
	}{
		"cassandra.yaml": {pods: 3, reads: func(_ *corev1.Pod, node *corev1.Node) map[string]string {
			return map[string]string{
				"env CASSANDRA_RACK": node.Labels[cluster.RackLabel],
				"env RACK":           node.Labels[cluster.RackLabel],
			}
		}},
		"kafka.yaml": {pods: 3, reads: func(pod *corev1.Pod, node *corev1.Node) map[string]string {
			return map[string]string{
				"env KAFKA_BROKER_RACK": node.Labels[cluster.RackLabel],
				"env RACK":              node.Labels[cluster.RackLabel],
				"env KAFKA_NODE_ID":     pod.Name[len("kafka-"):],
				"env POD_NAME":          pod.Name,
			}
		}},
		"rack-fallback.yaml": {pods: 1, reads: func(_ *corev1.Pod, node *corev1.Node) map[string]string {
			return map[string]string{"file rack": node.Labels[cluster.RackLabel], "env NODE": node.Name}
		}},
		"topology-job.yaml": {pods: 4, reads: func(pod *corev1.Pod, node *corev1.Node) map[string]string {
			return map[string]string{
				"file path":                pathOf(node),
				"env JOB_COMPLETION_INDEX": pod.Labels["batch.kubernetes.io/job-completion-index"],
			}
		}},
		"gpu-pod.yaml": {pods: 1, reads: func(_ *corev1.Pod, node *corev1.Node) map[string]string {
			devices := "gpu.nvidia.com/" + node.Name + "/gpu-0,gpu.nvidia.com/" + node.Name + "/gpu-1"
			return map[string]string{
				"env GPUS":           devices,
				"file devices":       devices,
				"env CAPACITY_TYPE":  "spot",
				"file instance-type": "gpu.xlarge",
			}
		}},
		"bind-report.yaml": {pods: 1, reads: func(pod *corev1.Pod, _ *corev1.Node) map[string]string {
			return map[string]string{
				"env BOUND_BY":  kubeScheduler,
				"env SCHEDULER": cluster.DefaultScheduler,
				"file calls":    "1",
				"file time":     pod.Annotations[bindInfo+"time"],
				"file waited":   pod.Annotations[bindInfo+"waited"],
			}
		}},
	}
	files, err := filepath.Glob(filepath.Join(manifests, "*.yaml"))
	require.NoError(t, err)
	for _, file := range files {
		name := filepath.Base(file)
		require.Contains(t, tests, name, "every file should belong to a case")
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, w, map[string]string{"pod-security.kubernetes.io/enforce": "restricted"})
			b.kubectl("apply", "--namespace", b.ns, "-f", filepath.Join(manifests, name))
			for _, pod := range b.untilAllBound(tc.pods) {
				read, err := downward(&pod)
				require.NoError(t, err)
				for what, value := range read {
					assert.NotEmpty(t, value, "%s of the pod %s", what, pod.Name)
				}
				assert.Equal(t, tc.reads(&pod, b.node(pod.Spec.NodeName)), read, "of the pod %s", pod.Name)
			}
		})
	}
}

// prepareForManifests creates the prerequisites of the shipped workloads: a default StorageClass and a node with GPUs.
func prepareForManifests(t *testing.T, w *world) {
	t.Helper()
	class := gen.StorageClass("standard", cluster.ProvisionerName, gen.Annotation("storageclass.kubernetes.io/is-default-class", "true"))
	_, err := w.client.StorageV1().StorageClasses().Create(t.Context(), class, metav1.CreateOptions{})
	require.NoError(t, err)
	require.NoError(t, cluster.CreateNodes(t.Context(), w.client, cluster.Node("gpu-node",
		cluster.WithLabels(map[string]string{corev1.LabelInstanceTypeStable: "gpu.xlarge", capacityLabel: "spot"}),
		cluster.WithTaints(corev1.Taint{Key: "nvidia.com/gpu", Effect: corev1.TaintEffectNoSchedule}))))
	(&bench{world: w, t: t}).newDeviceDriver("gpu.nvidia.com").publish("gpu-node", gen.Devices("gpu", 2)...)
}

// untilAllBound waits until the namespace has the given number of pods and all of them are bound. Like a kubelet, it reports each
// pod as ready, because some workloads start one pod after another.
func (b *bench) untilAllBound(n int) []corev1.Pod {
	b.t.Helper()
	var pods []corev1.Pod
	require.EventuallyWithT(b.t, func(c *assert.CollectT) {
		list, err := b.client.CoreV1().Pods(b.ns).List(b.t.Context(), metav1.ListOptions{})
		require.NoError(c, err)
		pods = list.Items
		bound := 0
		for i := range pods {
			if pods[i].Spec.NodeName == "" {
				continue
			}
			bound++
			if pods[i].Status.Phase == corev1.PodPending {
				assert.NoError(c, b.patchStatus(pods[i].Name))
			}
		}
		assert.Len(c, pods, n)
		assert.Equal(c, n, bound)
	}, patience, 100*time.Millisecond, "%d pods should be bound; events: %v", n, b.allEvents())
	return pods
}

// Pods of the operator in docs/example/operator have their rack from Prebind, or else from the operator. The policy rack-awareness is in force.
func testOperator(t *testing.T, w *world) {
	c, err := client.New(w.cluster.Config(), client.Options{})
	require.NoError(t, err)
	for name, tc := range map[string]struct {
		labels map[string]string
		// file is the one that has the rack.
		file string
	}{
		"With":    {file: "file prebind"},
		"Without": {labels: map[string]string{"prebind.dev/exempt": ""}, file: "file operator"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, w, tc.labels)
			pod := gen.Pod("pod", gen.InNamespace(b.ns), gen.Scheduler(cluster.DefaultScheduler), gen.EndsAtOnce())
			template := &corev1.PodTemplateSpec{ObjectMeta: pod.ObjectMeta, Spec: pod.Spec}
			operator.Template(template, "busybox:1.37", false)
			pod.ObjectMeta, pod.Spec = template.ObjectMeta, template.Spec
			require.NoError(t, c.Create(t.Context(), pod))
			bound := b.untilBound()
			require.EventuallyWithT(t, func(check *assert.CollectT) { // The leader writes the status of the policy.
				installed, err := operator.Installed(t.Context(), c, b.ns, "example.com/rack")
				require.NoError(check, err)
				assert.Equal(check, name == "With", installed)
			}, patience, again)
			require.NoError(t, operator.Supply(t.Context(), c, c, bound, cluster.RackLabel))
			require.NoError(t, c.Get(t.Context(), client.ObjectKeyFromObject(bound), bound))
			rack := b.node(bound.Spec.NodeName).Labels[cluster.RackLabel]
			assert.Equal(t, rack, operator.Rack(bound))
			read, err := downward(bound)
			require.NoError(t, err)
			other := map[string]string{"file prebind": "file operator", "file operator": "file prebind"}[tc.file]
			assert.Equal(t, map[string]string{tc.file: rack, other: ""}, read)
		})
	}
}

// downward returns the values that the containers of the pod read with the downward API, by "env NAME" and "file PATH". It
// applies the rules of the kubelet to the stored pod, and returns an error where the kubelet fails.
func downward(pod *corev1.Pod) (map[string]string, error) {
	out := map[string]string{}
	read := func(name string, field *corev1.ObjectFieldSelector) error {
		if field == nil {
			return nil
		}
		value, err := fieldOf(pod, field.FieldPath)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		out[name] = value
		return nil
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for _, env := range c.Env {
			if env.ValueFrom == nil {
				continue
			}
			if err := read("env "+env.Name, env.ValueFrom.FieldRef); err != nil {
				return nil, err
			}
		}
	}
	for i := range pod.Spec.Volumes {
		if pod.Spec.Volumes[i].DownwardAPI == nil {
			continue
		}
		for _, item := range pod.Spec.Volumes[i].DownwardAPI.Items {
			if err := read("file "+item.Path, item.FieldRef); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// fieldOf returns the field of the pod with the path, like the kubelet. A missing annotation or label is an empty string.
func fieldOf(pod *corev1.Pod, path string) (string, error) {
	field, key, _ := strings.Cut(strings.TrimSuffix(path, "']"), "['")
	switch field {
	case "metadata.annotations":
		return pod.Annotations[key], nil
	case "metadata.labels":
		return pod.Labels[key], nil
	case "metadata.name":
		return pod.Name, nil
	case "metadata.namespace":
		return pod.Namespace, nil
	case "spec.nodeName":
		return pod.Spec.NodeName, nil
	default:
		return "", fmt.Errorf("unsupported field path %q", path)
	}
}
