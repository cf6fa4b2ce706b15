// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
)

// bench is a separate namespace for a test. Its methods create objects in it.
type bench struct {
	*world
	t  *testing.T
	ns string
}

func newBench(t *testing.T, w *world, labels map[string]string) *bench {
	t.Helper()
	if w == shared {
		takeTurn(t)
	}
	ns, err := w.client.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-", Labels: labels}}, metav1.CreateOptions{})
	require.NoError(t, err)
	require.NoError(t, cluster.WaitForPods(t.Context(), w.client, ns.Name))
	return &bench{world: w, t: t, ns: ns.Name}
}

// class creates a StorageClass for this test only.
func (b *bench) class(provisioner string, options ...gen.ClassOption) string {
	b.t.Helper()
	class := gen.StorageClass("", provisioner, options...)
	class.GenerateName = "e2e-"
	class, err := b.client.StorageV1().StorageClasses().Create(b.t.Context(), class, metav1.CreateOptions{})
	require.NoError(b.t, err)
	return class.Name
}

// dynamic creates a WaitForFirstConsumer class with the provisioning time.
func (b *bench) dynamic(delay string) string {
	return b.class(cluster.ProvisionerName, gen.Parameter("delay", delay))
}

// static creates a WaitForFirstConsumer class with a volume of each size on the node. It also returns the names of the volumes.
func (b *bench) static(node string, sizes ...string) (class string, volumes []string) {
	b.t.Helper()
	class = b.class(volume.NotSupportedProvisioner)
	for _, size := range sizes {
		pv := gen.Volume("", gen.VolumeOfClass(class), gen.Capacity(size), gen.OnNode(node))
		pv.GenerateName = "e2e-"
		pv, err := b.client.CoreV1().PersistentVolumes().Create(b.t.Context(), pv, metav1.CreateOptions{})
		require.NoError(b.t, err)
		volumes = append(volumes, pv.Name)
	}
	for _, name := range volumes {
		untilRead(b, b.client.CoreV1().PersistentVolumes().Get, name, "available", func(pv *corev1.PersistentVolume) bool {
			return pv.Status.Phase == corev1.VolumeAvailable
		})
	}
	return class, volumes
}

func (b *bench) claim(name, class string) {
	b.t.Helper()
	require.NoError(b.t, b.createClaim(name, class))
}

// createClaim is safe for concurrent use.
func (b *bench) createClaim(name, class string) error {
	claim := gen.Claim(name, gen.InNamespace(b.ns), gen.OfClass(class))
	_, err := b.client.CoreV1().PersistentVolumeClaims(b.ns).Create(b.t.Context(), claim, metav1.CreateOptions{})
	return err
}

// pod creates the pod "pod" with the claims for the scheduler with the name.
func (b *bench) pod(scheduler string, claims ...string) {
	b.t.Helper()
	b.podWith(scheduler, usesClaims(claims)...)
}

// podWith creates the pod "pod" with the options.
func (b *bench) podWith(scheduler string, options ...gen.PodOption) *corev1.Pod {
	b.t.Helper()
	pod, err := b.createPod("pod", scheduler, options...)
	require.NoError(b.t, err)
	return pod
}

// createPod is safe for concurrent use.
func (b *bench) createPod(name, scheduler string, options ...gen.PodOption) (*corev1.Pod, error) {
	options = append([]gen.PodOption{gen.InNamespace(b.ns), gen.Scheduler(scheduler), gen.EndsAtOnce()}, options...)
	return b.client.CoreV1().Pods(b.ns).Create(b.t.Context(), gen.Pod(name, options...), metav1.CreateOptions{})
}

func usesClaims(claims []string) []gen.PodOption {
	var options []gen.PodOption
	for _, claim := range claims {
		options = append(options, gen.UsesClaim(claim))
	}
	return options
}

// bindByHand posts a Binding of the pod; client-go repeats it on 429.
func (b *bench) bindByHand(binding *corev1.Binding) error {
	return b.client.CoreV1().Pods(b.ns).Bind(b.t.Context(), binding, metav1.CreateOptions{})
}

// binding returns a Binding of the pod "pod" to the node.
func (b *bench) binding(node string, options ...gen.BindingOption) *corev1.Binding {
	return gen.Binding(gen.Pod("pod", gen.InNamespace(b.ns)), node, options...)
}
