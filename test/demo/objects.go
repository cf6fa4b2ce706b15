// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
)

const className = "slow"

// makeObjects creates the objects for both parts of the demo.
func (d *demo) makeObjects(ctx context.Context) error {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if _, err := d.client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
		return err
	}
	class := gen.StorageClass(className, cluster.ProvisionerName, gen.Parameter("delay", delay.String()))
	_, err := d.client.StorageV1().StorageClasses().Create(ctx, class, metav1.CreateOptions{})
	return err
}

// statefulSet returns a StatefulSet whose pods each need a volume and read their rack with the downward API.
func statefulSet(name string) *appsv1.StatefulSet {
	labels := map[string]string{"app": name}
	claim := gen.Claim("data", gen.OfClass(className))
	claim.Namespace = ""
	pod := gen.Pod("", gen.Scheduler(cluster.NoPreBindScheduler))
	pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: claim.Name, MountPath: "/data"}}
	pod.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "RACK", ValueFrom: &corev1.EnvVarSource{
		FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.annotations['topology.prebind.dev/rack']"},
	}}}
	return &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.StatefulSetSpec{
			Replicas: ptr.To[int32](pods),
			// Without kubelets, the first pod never becomes ready.
			PodManagementPolicy:  appsv1.ParallelPodManagement,
			Selector:             &metav1.LabelSelector{MatchLabels: labels},
			Template:             corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod.Spec},
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{*claim},
		},
	}
}

// show creates the StatefulSet, reports the events of its pods until over returns true, and prints a table.
func (d *demo) show(ctx context.Context, name string, over func(*story) bool) error {
	if _, err := d.client.AppsV1().StatefulSets(namespace).Create(ctx, statefulSet(name), metav1.CreateOptions{}); err != nil {
		return err
	}
	s := newStory(d, "app="+name)
	if err := s.follow(ctx, over); err != nil {
		return fmt.Errorf("following the pods of %s: %w", name, err)
	}
	return s.table(ctx)
}
