// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package provisioner is the test provisioner: an external provisioner built on
// the library that the real ones use, with no storage behind it. A parameter sets its delay. It creates PersistentVolumes for the selected
// node's zone, or for that node only.
package provisioner

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"
)

// nodeGetter reads one Node; client-go's NodeInterface is one.
type nodeGetter interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*corev1.Node, error)
}

// provisioner implements controller.Provisioner and controller.BlockProvisioner.
// The library calls it from many goroutines, but never twice at once for one
// claim.
type provisioner struct {
	driver string
	nodes  nodeGetter
}

// Provision waits for the class's delay, then makes a volume.
func (p *provisioner) Provision(ctx context.Context, o controller.ProvisionOptions) (*corev1.PersistentVolume, controller.ProvisioningState, error) {
	delay, err := delayOf(o.StorageClass.Parameters)
	if err != nil {
		return nil, controller.ProvisioningFinished, err
	}
	if err := wait(ctx, delay); err != nil {
		return nil, controller.ProvisioningFinished, fmt.Errorf("provisioning was interrupted: %w", err)
	}
	affinity, state, err := p.affinity(ctx, o.SelectedNodeName)
	if err != nil {
		return nil, state, err
	}
	return p.volume(o, affinity), controller.ProvisioningFinished, nil
}

// delayOf returns how long the provisioning takes. An unknown parameter or value
// is an error, so that a typing mistake in a test shows up as an event on the
// claim.
func delayOf(parameters map[string]string) (time.Duration, error) {
	var delay time.Duration
	for key, value := range parameters {
		if key != "delay" {
			return 0, fmt.Errorf("unknown StorageClass parameter %q: use delay", key)
		}
		var err error
		if delay, err = time.ParseDuration(value); err != nil {
			return 0, fmt.Errorf("StorageClass parameter delay: %w", err)
		}
	}
	return delay, nil
}

// Delete has nothing to free; the library then deletes the PersistentVolume.
func (p *provisioner) Delete(context.Context, *corev1.PersistentVolume) error { return nil }

// SupportsBlock lets claims with volumeMode Block be provisioned as well.
func (p *provisioner) SupportsBlock(context.Context) bool { return true }

// affinity returns the node affinity that the volume gets; nil is every node.
func (p *provisioner) affinity(ctx context.Context, nodeName string) (*corev1.VolumeNodeAffinity, controller.ProvisioningState, error) {
	if nodeName == "" {
		return nil, controller.ProvisioningFinished, nil
	}
	node, err := p.nodes.Get(ctx, nodeName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		// As the CSI external-provisioner does: only another node can help.
		return nil, controller.ProvisioningReschedule, fmt.Errorf("selected node %q is gone: %w", nodeName, err)
	}
	if err != nil {
		return nil, controller.ProvisioningNoChange, fmt.Errorf("read the selected node: %w", err)
	}
	key := corev1.LabelHostname
	if _, zoned := node.Labels[corev1.LabelTopologyZone]; zoned {
		key = corev1.LabelTopologyZone
	}
	value, ok := node.Labels[key]
	if !ok {
		return nil, controller.ProvisioningFinished, fmt.Errorf("node %q has no label %s: add it", nodeName, key)
	}
	return &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{
				Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{value},
			}},
		}},
	}}, controller.ProvisioningFinished, nil
}

// volume builds the PersistentVolume; the library adds the claim's reference and
// the class's name.
func (p *provisioner) volume(o controller.ProvisionOptions, affinity *corev1.VolumeNodeAffinity) *corev1.PersistentVolume {
	policy := corev1.PersistentVolumeReclaimDelete
	if o.StorageClass.ReclaimPolicy != nil {
		policy = *o.StorageClass.ReclaimPolicy
	}
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: o.PVName},
		Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeReclaimPolicy: policy,
			AccessModes:                   o.PVC.Spec.AccessModes,
			VolumeMode:                    o.PVC.Spec.VolumeMode,
			MountOptions:                  o.StorageClass.MountOptions,
			NodeAffinity:                  affinity,
			Capacity: corev1.ResourceList{
				corev1.ResourceStorage: o.PVC.Spec.Resources.Requests[corev1.ResourceStorage],
			},
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: p.driver, VolumeHandle: o.PVName},
			},
		},
	}
}

// wait returns after d, or with the context's error as soon as that ends.
func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
