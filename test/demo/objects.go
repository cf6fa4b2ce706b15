// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
)

// Storage classes: the volumes of the first take the delay, those of the second are created immediately.
const (
	className     = "slow"
	fastClassName = "fast"
)

// makeObjects creates the objects for both parts of the demo.
func (d *demo) makeObjects(ctx context.Context) error {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if _, err := d.client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
		return err
	}
	for name, delay := range map[string]time.Duration{className: delay, fastClassName: 0} {
		class := gen.StorageClass(name, cluster.ProvisionerName, gen.Parameter("delay", delay.String()))
		if _, err := d.client.StorageV1().StorageClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// addNodes creates nodes that can run pods. Their CSINodes have the drivers.
func (d *demo) addNodes(ctx context.Context, driver string, nodes ...*corev1.Node) error {
	if err := cluster.CreateNodes(ctx, d.client, nodes...); err != nil {
		return err
	}
	for _, node := range nodes {
		csiNode := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: node.Name}}
		if driver != "" {
			csiNode.Spec.Drivers = []storagev1.CSINodeDriver{{Name: driver, NodeID: node.Name}}
		}
		if _, err := d.client.StorageV1().CSINodes().Create(ctx, csiNode, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// statefulSet returns a StatefulSet whose pods read their rack with the downward API. Each pod has a volume of the class, or
// none if the class is empty.
func statefulSet(name string, replicas int32, class string, options ...gen.PodOption) *appsv1.StatefulSet {
	pod := gen.Pod("", append(options, gen.Label("app", name), gen.Scheduler(cluster.NoPreBindScheduler))...)
	var claims []corev1.PersistentVolumeClaim
	if class != "" {
		claim := gen.Claim("data", gen.OfClass(class))
		claim.Namespace = ""
		claims = append(claims, *claim)
		pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: claim.Name, MountPath: "/data"}}
	}
	pod.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "RACK", ValueFrom: &corev1.EnvVarSource{
		FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.annotations['topology.prebind.dev/rack']"},
	}}}
	return &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.StatefulSetSpec{
			Replicas: &replicas,
			// All pods at once show that Prebind waits for several volumes at the same time.
			PodManagementPolicy:  appsv1.ParallelPodManagement,
			Selector:             &metav1.LabelSelector{MatchLabels: pod.Labels},
			Template:             corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: pod.Labels, Annotations: pod.Annotations}, Spec: pod.Spec},
			VolumeClaimTemplates: claims,
		},
	}
}

// show creates the StatefulSet, reports the events of its pods until over returns true, and prints a table.
func (d *demo) show(ctx context.Context, set *appsv1.StatefulSet, over func(*story) bool) error {
	s, err := d.begin(ctx, set)
	if err != nil {
		return err
	}
	if err := s.follow(ctx, over); err != nil {
		return err
	}
	return s.table(ctx)
}

// begin creates the StatefulSet and returns the story of its pods.
func (d *demo) begin(ctx context.Context, set *appsv1.StatefulSet) (*story, error) {
	_, err := d.client.AppsV1().StatefulSets(namespace).Create(ctx, set, metav1.CreateOptions{})
	return newStory(d, set.Name, int(*set.Spec.Replicas)), err
}
