// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package volumes contains what several plugins need of PersistentVolumeClaims and
// PersistentVolumes: their form in the cache, and the claims of a pod.
package volumes

import (
	"slices"
	"strings"
	"unique"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/volume"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/internal/compact"
)

// Most claims and volumes of a cluster are bound to each other. The cache holds only the few fields
// of them that plugins read; docs/performance has the memory. Of the other claims, whose size a
// tenant controls, it holds the fields that plugins read.

const (
	// maxClaim is the maximum size of a claim in the cache, in bytes as stored by the API
	// server. Of a larger one, the cache has only the annotation TooLarge.
	maxClaim = 8 << 10
	// maxAnnotation is the maximum length of a kept annotation. Names are shorter.
	maxAnnotation = 253
)

// TooLarge is the annotation of a claim whose spec the cache does not hold, because of its size. A tenant who sets it affects
// only the own pods.
const TooLarge = "prebind.dev/too-large"

// keptAnnotations are the annotations of a claim that plugins and their helpers read.
var keptAnnotations = []string{
	volume.AnnBindCompleted, volume.AnnBoundByController, volume.AnnSelectedNode, volume.AnnStorageProvisioner, corev1.BetaStorageClassAnnotation,
	TooLarge,
}

// Caches returns transforms that reduce the memory of claims, volumes and CSINodes. All plugins that read
// them register it as Registration.Caches, so that they share one cache.
func Caches(string) map[client.Object]cache.ByObject {
	return map[client.Object]cache.ByObject{
		&corev1.PersistentVolumeClaim{}: {Transform: PackClaim},
		&corev1.PersistentVolume{}:      {Transform: PackVolume},
		&storagev1.CSINode{}:            {Transform: TrimNode},
	}
}

// PackClaim is the transform for claims. It may change the object. It returns a compact.Object for a
// bound claim that is not being deleted.
func PackClaim(o any) (any, error) {
	claim, ok := o.(*corev1.PersistentVolumeClaim)
	if !ok {
		return o, nil
	}
	trimClaim(claim)
	bound := IsBound(claim) && claim.Status.Phase == corev1.ClaimBound && claim.DeletionTimestamp == nil
	if bound { // Then only these fields matter.
		claim.Spec = corev1.PersistentVolumeClaimSpec{VolumeName: claim.Spec.VolumeName, AccessModes: claim.Spec.AccessModes}
	}
	switch {
	case claim.Size() > maxClaim:
		claim.Annotations, claim.OwnerReferences, claim.Spec = map[string]string{TooLarge: ""}, nil, corev1.PersistentVolumeClaimSpec{}
	case bound:
		return packBound(claim), nil
	}
	return claim, nil
}

func packBound(claim *corev1.PersistentVolumeClaim) *compact.Object {
	selected, volumeName := claim.Annotations[volume.AnnSelectedNode], claim.Spec.VolumeName
	var controller types.UID
	if len(claim.OwnerReferences) > 0 {
		controller = claim.OwnerReferences[0].UID
	}
	node, owner, exclusive := unique.Make(selected), unique.Make(controller), slices.Contains(claim.Spec.AccessModes, corev1.ReadWriteOncePod)
	return compact.Pack(claim, func(m metav1.ObjectMeta) client.Object {
		m.Annotations = map[string]string{volume.AnnBindCompleted: "yes"}
		if node := node.Value(); node != "" {
			m.Annotations[volume.AnnSelectedNode] = node
		}
		if owner := owner.Value(); owner != "" {
			m.OwnerReferences = []metav1.OwnerReference{{UID: owner, Controller: new(true)}}
		}
		claim := &corev1.PersistentVolumeClaim{
			ObjectMeta: m,
			Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: volumeName},
			Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
		}
		if exclusive {
			claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
		}
		return claim
	})
}

// trimClaim removes the fields that plugins do not read.
func trimClaim(claim *corev1.PersistentVolumeClaim) {
	kept := map[string]string{}
	for _, key := range keptAnnotations {
		if value, ok := claim.Annotations[key]; ok {
			// The clone does not keep the rest in memory.
			kept[key] = strings.Clone(value[:min(len(value), maxAnnotation)])
		}
	}
	var owners []metav1.OwnerReference
	if controller := metav1.GetControllerOfNoCopy(claim); controller != nil {
		owners = []metav1.OwnerReference{{UID: controller.UID, Controller: new(true)}}
	}
	claim.Annotations, claim.OwnerReferences = kept, owners
	claim.Labels, claim.Finalizers, claim.ManagedFields = nil, nil, nil
	claim.Spec.DataSource, claim.Spec.DataSourceRef = nil, nil
	claim.Status = corev1.PersistentVolumeClaimStatus{Phase: claim.Status.Phase}
}

// PackVolume is the transform for volumes. It may change the object. It returns a compact.Object for a
// bound volume that is not migratable.
func PackVolume(o any) (any, error) {
	pv, ok := o.(*corev1.PersistentVolume)
	if !ok {
		return o, nil
	}
	pv.ManagedFields = nil
	ref := pv.Spec.ClaimRef
	if ref == nil || ref.UID == "" || pv.Status.Phase != corev1.VolumeBound || pv.DeletionTimestamp != nil || IsMigratable(pv) {
		return pv, nil
	}
	var affinity []byte
	if pv.Spec.NodeAffinity != nil {
		var err error
		if affinity, err = pv.Spec.NodeAffinity.Marshal(); err != nil {
			return pv, nil //nolint:nilerr // The unpacked form is correct, too.
		}
	}
	driver := ""
	if pv.Spec.CSI != nil {
		driver = pv.Spec.CSI.Driver
	}
	// The volumes of a zone or node share the encoded affinity.
	namespace, encoded, csi := unique.Make(ref.Namespace), unique.Make(string(affinity)), unique.Make(driver)
	name, uid := ref.Name, ref.UID
	pv.UID = "" // Plugins do not read it.
	return compact.Pack(pv, func(m metav1.ObjectMeta) client.Object {
		bound := &corev1.PersistentVolume{
			ObjectMeta: m,
			Spec:       corev1.PersistentVolumeSpec{ClaimRef: &corev1.ObjectReference{Namespace: namespace.Value(), Name: name, UID: uid}},
			Status:     corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound},
		}
		if driver := csi.Value(); driver != "" {
			bound.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driver}
		}
		if affinity := encoded.Value(); affinity != "" {
			bound.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{}
			if bound.Spec.NodeAffinity.Unmarshal([]byte(affinity)) != nil {
				return nil // Plugins read it from the API server.
			}
		}
		return bound
	}), nil
}

// TrimNode is the transform for CSINodes. It keeps the names and limits of the drivers, the in-tree
// plugins that were migrated to CSI, and the node that owns the object.
func TrimNode(o any) (any, error) {
	node, ok := o.(*storagev1.CSINode)
	if !ok {
		return o, nil
	}
	trimmed := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: node.Name, ResourceVersion: node.ResourceVersion}}
	if migrated := node.Annotations[corev1.MigratedPluginsAnnotationKey]; migrated != "" {
		// Nodes of the same kind share the texts.
		trimmed.Annotations = map[string]string{corev1.MigratedPluginsAnnotationKey: unique.Make(migrated).Value()}
	}
	for _, owner := range node.OwnerReferences {
		if owner.Kind == "Node" {
			trimmed.OwnerReferences = []metav1.OwnerReference{{Kind: "Node", UID: owner.UID}}
		}
	}
	for _, d := range node.Spec.Drivers {
		trimmed.Spec.Drivers = append(trimmed.Spec.Drivers, storagev1.CSINodeDriver{Name: unique.Make(d.Name).Value(), Allocatable: d.Allocatable})
	}
	return trimmed, nil
}
