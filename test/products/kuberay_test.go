// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package products

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	rayv1 "github.com/ray-project/kuberay/ray-operator/apis/ray/v1"
	"github.com/ray-project/kuberay/ray-operator/controllers/ray/common"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// The policy writes the annotation of the file that ray start reads in KubeRay's worker. The cluster is the shipped example.
func TestKubeRay(t *testing.T) {
	const headPort = "6379"
	content, err := os.ReadFile(filepath.Join(root, "config", "policies", "ray-topology", "raycluster.yaml"))
	require.NoError(t, err)
	ray := rayv1.RayCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ml"}}
	require.NoError(t, yaml.UnmarshalStrict(content, &ray))
	workers := ray.Spec.WorkerGroupSpecs[0]
	template := common.DefaultWorkerPodTemplate(t.Context(), ray, workers, "raycluster-workers-worker", "raycluster-head-svc", headPort, "", 0, 0)
	pod := common.BuildPod(t.Context(), template, rayv1.WorkerNode, workers.RayStartParams, headPort, false, "", "raycluster-head-svc", nil)

	const key, file = "ray.io/topology-labels", "/etc/topology/labels"
	assert.Contains(t, strings.Join(pod.Spec.Containers[0].Args, " "), "--labels-file="+file)
	require.Contains(t, pod.Spec.Volumes, corev1.Volume{Name: "topology", VolumeSource: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{
		Items: []corev1.DownwardAPIVolumeFile{{Path: filepath.Base(file), FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.annotations['" + key + "']"}}},
	}}})
	requireWritten(t, map[string]string{key: `{"ray.io/availability-zone":"zone-b"}`}, "ray-topology",
		&corev1.PodTemplateSpec{ObjectMeta: pod.ObjectMeta, Spec: pod.Spec}, map[string]string{corev1.LabelTopologyZone: "zone-b"})
}
