// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package gen

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"
)

// ClaimOption is an option of Claim.
type ClaimOption interface {
	applyClaim(claim *corev1.PersistentVolumeClaim)
}

type claimFunc func(*corev1.PersistentVolumeClaim)

func (f claimFunc) applyClaim(o *corev1.PersistentVolumeClaim) { f(o) }

// Claim makes an unbound claim of 1Gi, ReadWriteOnce, without a class.
func Claim(name string, options ...ClaimOption) *corev1.PersistentVolumeClaim {
	claim := &corev1.PersistentVolumeClaim{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolumeClaim"},
		ObjectMeta: metav1.ObjectMeta{Namespace: DefaultNamespace, Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: storage("1Gi")},
		},
	}
	for _, o := range options {
		o.applyClaim(claim)
	}
	return claim
}

// OfClass sets the claim's class.
func OfClass(class string) ClaimOption {
	return claimFunc(func(claim *corev1.PersistentVolumeClaim) { claim.Spec.StorageClassName = &class })
}

// Requests sets how much the claim asks for.
func Requests(quantity string) ClaimOption {
	return claimFunc(func(claim *corev1.PersistentVolumeClaim) { claim.Spec.Resources.Requests = storage(quantity) })
}

// NamesVolume is a claim that somebody pre-bound to the volume: it is not bound.
func NamesVolume(name string) ClaimOption {
	return claimFunc(func(claim *corev1.PersistentVolumeClaim) { claim.Spec.VolumeName = name })
}

// BoundToVolume is a claim that the PersistentVolume controller has bound.
func BoundToVolume(name string) ClaimOption {
	return claimFunc(func(claim *corev1.PersistentVolumeClaim) {
		claim.Spec.VolumeName = name
		claim.Status.Phase = corev1.ClaimBound
		metav1.SetMetaDataAnnotation(&claim.ObjectMeta, volume.AnnBindCompleted, "yes")
	})
}

// ClaimPhase sets the claim's phase.
func ClaimPhase(phase corev1.PersistentVolumeClaimPhase) ClaimOption {
	return claimFunc(func(claim *corev1.PersistentVolumeClaim) { claim.Status.Phase = phase })
}

// SelectedNode marks the claim as being provisioned for the node.
func SelectedNode(node string) Meta { return Annotation(volume.AnnSelectedNode, node) }

// VolumeOption is an option of Volume.
type VolumeOption interface {
	applyVolume(pv *corev1.PersistentVolume)
}

type volumeFunc func(*corev1.PersistentVolume)

func (f volumeFunc) applyVolume(o *corev1.PersistentVolume) { f(o) }

// Volume makes an available volume of 1Gi, ReadWriteOnce, without a class or
// node affinity.
func Volume(name string, options ...VolumeOption) *corev1.PersistentVolume {
	pv := &corev1.PersistentVolume{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolume"},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Capacity:                      storage("1Gi"),
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				HostPath: &corev1.HostPathVolumeSource{Path: "/tmp/" + name},
			},
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeAvailable},
	}
	for _, o := range options {
		o.applyVolume(pv)
	}
	return pv
}

// VolumeOfClass sets the volume's class.
func VolumeOfClass(class string) VolumeOption {
	return volumeFunc(func(pv *corev1.PersistentVolume) { pv.Spec.StorageClassName = class })
}

// Capacity sets the volume's size.
func Capacity(quantity string) VolumeOption {
	return volumeFunc(func(pv *corev1.PersistentVolume) { pv.Spec.Capacity = storage(quantity) })
}

// ClaimRef binds the volume's side to the claim. With a claim without UID, it is
// what a user writes to pre-bind the volume.
func ClaimRef(claim *corev1.PersistentVolumeClaim) VolumeOption {
	return volumeFunc(func(pv *corev1.PersistentVolume) {
		pv.Spec.ClaimRef = &corev1.ObjectReference{
			APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID,
		}
	})
}

// OnNodesWith gives the volume the node affinity label = one of the values.
func OnNodesWith(label string, values ...string) VolumeOption {
	return volumeFunc(func(pv *corev1.PersistentVolume) {
		pv.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
				{Key: label, Operator: corev1.NodeSelectorOpIn, Values: values},
			}}},
		}}
	})
}

// OnNode gives the volume the node affinity to one node, by its hostname label.
func OnNode(node string) VolumeOption { return OnNodesWith(corev1.LabelHostname, node) }

// VolumePhase sets the volume's phase.
func VolumePhase(phase corev1.PersistentVolumePhase) VolumeOption {
	return volumeFunc(func(pv *corev1.PersistentVolume) { pv.Status.Phase = phase })
}

// ClassOption is an option of StorageClass.
type ClassOption interface {
	applyClass(class *storagev1.StorageClass)
}

type classFunc func(*storagev1.StorageClass)

func (f classFunc) applyClass(o *storagev1.StorageClass) { f(o) }

// StorageClass makes a class with this provisioner that binds when a pod has its
// node (WaitForFirstConsumer).
func StorageClass(name, provisioner string, options ...ClassOption) *storagev1.StorageClass {
	mode := storagev1.VolumeBindingWaitForFirstConsumer
	class := &storagev1.StorageClass{
		TypeMeta:          metav1.TypeMeta{APIVersion: "storage.k8s.io/v1", Kind: "StorageClass"},
		ObjectMeta:        metav1.ObjectMeta{Name: name},
		Provisioner:       provisioner,
		VolumeBindingMode: &mode,
	}
	for _, o := range options {
		o.applyClass(class)
	}
	return class
}

// Immediate is a class that binds at once.
func Immediate() ClassOption {
	return classFunc(func(class *storagev1.StorageClass) {
		mode := storagev1.VolumeBindingImmediate
		class.VolumeBindingMode = &mode
	})
}

// AllowedTopology adds a term that allows label = one of the values.
func AllowedTopology(label string, values ...string) ClassOption {
	return classFunc(func(class *storagev1.StorageClass) {
		class.AllowedTopologies = append(class.AllowedTopologies, corev1.TopologySelectorTerm{
			MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: label, Values: values}},
		})
	})
}

func storage(quantity string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(quantity)}
}

// Parameter sets a parameter that the provisioner gets.
func Parameter(key, value string) ClassOption {
	return classFunc(func(class *storagev1.StorageClass) {
		if class.Parameters == nil {
			class.Parameters = map[string]string{}
		}
		class.Parameters[key] = value
	})
}

// AccessModes sets the claim's access modes.
func AccessModes(modes ...corev1.PersistentVolumeAccessMode) ClaimOption {
	return claimFunc(func(claim *corev1.PersistentVolumeClaim) { claim.Spec.AccessModes = modes })
}

// BlockMode is a claim for a raw block device.
func BlockMode() ClaimOption {
	return claimFunc(func(claim *corev1.PersistentVolumeClaim) { claim.Spec.VolumeMode = new(corev1.PersistentVolumeBlock) })
}

// Selects adds a label that the claim's volume has to have.
func Selects(label, value string) ClaimOption {
	return claimFunc(func(claim *corev1.PersistentVolumeClaim) {
		if claim.Spec.Selector == nil {
			claim.Spec.Selector = &metav1.LabelSelector{}
		}
		metav1.AddLabelToSelector(claim.Spec.Selector, label, value)
	})
}

// AttributesClass sets the claim's VolumeAttributesClass.
func AttributesClass(name string) ClaimOption {
	return claimFunc(func(claim *corev1.PersistentVolumeClaim) { claim.Spec.VolumeAttributesClassName = &name })
}

// VolumeAccessModes sets the volume's access modes.
func VolumeAccessModes(modes ...corev1.PersistentVolumeAccessMode) VolumeOption {
	return volumeFunc(func(pv *corev1.PersistentVolume) { pv.Spec.AccessModes = modes })
}

// VolumeBlockMode is a volume that is a raw block device.
func VolumeBlockMode() VolumeOption {
	return volumeFunc(func(pv *corev1.PersistentVolume) { pv.Spec.VolumeMode = new(corev1.PersistentVolumeBlock) })
}

// VolumeAttributesClass sets the volume's VolumeAttributesClass.
func VolumeAttributesClass(name string) VolumeOption {
	return volumeFunc(func(pv *corev1.PersistentVolume) { pv.Spec.VolumeAttributesClassName = &name })
}

// VolumeSource makes the volume one of this source.
func VolumeSource(source corev1.PersistentVolumeSource) VolumeOption {
	return volumeFunc(func(pv *corev1.PersistentVolume) { pv.Spec.PersistentVolumeSource = source })
}

// CSIDriver makes a driver that does, or does not, want its capacity looked at.
func CSIDriver(name string, capacity bool) *storagev1.CSIDriver {
	return &storagev1.CSIDriver{
		TypeMeta:   metav1.TypeMeta{APIVersion: "storage.k8s.io/v1", Kind: "CSIDriver"},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       storagev1.CSIDriverSpec{StorageCapacity: &capacity},
	}
}

// CSINode makes the CSINode of a node that has handed these in-tree plugins over
// to CSI drivers.
func CSINode(node string, migrated ...string) *storagev1.CSINode {
	csiNode := &storagev1.CSINode{
		TypeMeta:   metav1.TypeMeta{APIVersion: "storage.k8s.io/v1", Kind: "CSINode"},
		ObjectMeta: metav1.ObjectMeta{Name: node},
	}
	metav1.SetMetaDataAnnotation(&csiNode.ObjectMeta, corev1.MigratedPluginsAnnotationKey, strings.Join(migrated, ","))
	return csiNode
}

// CapacityOption is an option of CSIStorageCapacity.
type CapacityOption func(c *storagev1.CSIStorageCapacity)

// CSIStorageCapacity makes a capacity of the class that every node can reach. It
// has no amount yet.
func CSIStorageCapacity(name, class string, options ...CapacityOption) *storagev1.CSIStorageCapacity {
	c := &storagev1.CSIStorageCapacity{
		TypeMeta:         metav1.TypeMeta{APIVersion: "storage.k8s.io/v1", Kind: "CSIStorageCapacity"},
		ObjectMeta:       metav1.ObjectMeta{Namespace: DefaultNamespace, Name: name},
		StorageClassName: class,
		NodeTopology:     &metav1.LabelSelector{},
	}
	for _, o := range options {
		o(c)
	}
	return c
}

// Amount is how much is left.
func Amount(quantity string) CapacityOption {
	return func(c *storagev1.CSIStorageCapacity) { c.Capacity = new(resource.MustParse(quantity)) }
}

// LargestVolume is how large a volume may be.
func LargestVolume(quantity string) CapacityOption {
	return func(c *storagev1.CSIStorageCapacity) { c.MaximumVolumeSize = new(resource.MustParse(quantity)) }
}

// ReachableWith limits the capacity to nodes with the label.
func ReachableWith(label, value string) CapacityOption {
	return func(c *storagev1.CSIStorageCapacity) { metav1.AddLabelToSelector(c.NodeTopology, label, value) }
}

// Unreachable is a capacity without a topology, which no node can use.
func Unreachable() CapacityOption {
	return func(c *storagev1.CSIStorageCapacity) { c.NodeTopology = nil }
}
