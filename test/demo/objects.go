// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
)

// className is that of the StorageClass, whose volumes take the delay.
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

// statefulSet returns a StatefulSet whose pods have a volume and read their rack with the downward API.
func statefulSet(name string, replicas int32, options ...gen.PodOption) *appsv1.StatefulSet {
	pod := gen.Pod("", append(options, gen.Label("app", name), gen.Scheduler(cluster.NoPreBindScheduler))...)
	claim := gen.Claim("data", gen.OfClass(className))
	claim.Namespace = ""
	pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: claim.Name, MountPath: "/data"}}
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
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{*claim},
		},
	}
}

// show creates the StatefulSet, prints the events of its pods until over is true for all of them, and then the pods and their claims.
func (d *demo) show(ctx context.Context, set *appsv1.StatefulSet, over func(corev1.Pod) bool) error {
	if _, err := d.client.AppsV1().StatefulSets(namespace).Create(ctx, set, metav1.CreateOptions{}); err != nil {
		return err
	}
	watching, stop := context.WithCancel(ctx)
	defer stop()
	events := d.cluster.Kubectl(watching, "get", "events", "--namespace="+namespace, "--watch-only", "--field-selector=involvedObject.kind=Pod",
		"--output=custom-columns=POD:.involvedObject.name,EVENT:.reason,MESSAGE:.message")
	events.Stdout = d.out
	if err := events.Start(); err != nil {
		return err
	}
	err := wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, 3*time.Minute, false, func(ctx context.Context) (bool, error) {
		list, err := d.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=" + set.Name})
		return err == nil && len(list.Items) == int(*set.Spec.Replicas) && !slices.ContainsFunc(list.Items, func(pod corev1.Pod) bool { return !over(pod) }), err
	})
	stop()
	_ = events.Wait() // It was stopped.
	if err != nil {
		return fmt.Errorf("following the pods of %s: %w", set.Name, err)
	}
	d.printf("")
	for _, args := range [][]string{
		{"pods", `--output=custom-columns=POD:.metadata.name,STATUS:.status.phase,NODE:.spec.nodeName,` +
			`ZONE:.metadata.annotations.topology\.prebind\.dev/zone,RACK:.metadata.annotations.topology\.prebind\.dev/rack`},
		{"persistentvolumeclaims", "--output=custom-columns=CLAIM:.metadata.name,STATUS:.status.phase,VOLUME:.spec.volumeName"},
	} {
		table := d.cluster.Kubectl(ctx, append([]string{"get", "--namespace=" + namespace, "--selector=app=" + set.Name}, args...)...)
		table.Stdout, table.Stderr = d.out, d.out
		if err := table.Run(); err != nil {
			return err
		}
		d.printf("")
	}
	return nil
}

func runs(pod corev1.Pod) bool { return pod.Status.Phase == corev1.PodRunning }

func isBound(pod corev1.Pod) bool { return pod.Spec.NodeName != "" }
