// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package volumes contains what several plugins need of PersistentVolumeClaims and
// PersistentVolumes: their form in the cache, and the claims of a pod.
package volumes

import (
	"encoding/json"
	"strings"
	"unique"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/lru"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
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

// The selections of the plugins that read claims, volumes and CSINodes. Volumes are listed by the claim that they name; see ClaimKey.
var (
	Claims   = framework.Selection{Name: "volumes/claims", Example: &corev1.PersistentVolumeClaim{}, Transform: framework.Transform(TrimClaim)}
	Volumes  = framework.Selection{Name: "volumes/volumes", Example: &corev1.PersistentVolume{}, Value: claimOf, Transform: framework.Transform(TrimVolume)}
	CSINodes = framework.Selection{Name: "volumes/csinodes", Example: &storagev1.CSINode{}, Transform: framework.Transform(TrimNode)}
)

// ClaimKey is the value of the volumes that name the claim.
func ClaimKey(namespace, name string) string { return namespace + "/" + name }

func claimOf(o client.Object) string {
	if pv, ok := o.(*corev1.PersistentVolume); ok && pv.Spec.ClaimRef != nil {
		return ClaimKey(pv.Spec.ClaimRef.Namespace, pv.Spec.ClaimRef.Name)
	}
	return ""
}

// TrimClaim trims claims. It may change the object. Of a bound claim, it keeps only the volume and the access modes.
func TrimClaim(claim *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	bound, kept := IsBound(claim), map[string]string{}
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
	if bound {
		claim.Annotations = Share(kept)
		claim.Spec = corev1.PersistentVolumeClaimSpec{VolumeName: claim.Spec.VolumeName, AccessModes: claim.Spec.AccessModes}
	}
	if claim.Size() > maxClaim {
		claim.Annotations, claim.OwnerReferences, claim.Spec = map[string]string{TooLarge: ""}, nil, corev1.PersistentVolumeClaimSpec{}
	}
	return claim
}

// TrimVolume trims volumes. It may change the object. Of a bound volume that is not migratable, it keeps the claim, the
// driver and the node affinity.
func TrimVolume(pv *corev1.PersistentVolume) *corev1.PersistentVolume {
	pv.ManagedFields = nil
	ref := pv.Spec.ClaimRef
	if ref == nil || ref.UID == "" || pv.Status.Phase != corev1.VolumeBound || IsMigratable(pv) {
		return pv
	}
	bound := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: pv.Name, ResourceVersion: pv.ResourceVersion, DeletionTimestamp: pv.DeletionTimestamp},
		Spec: corev1.PersistentVolumeSpec{
			ClaimRef:     &corev1.ObjectReference{Namespace: ref.Namespace, Name: ref.Name, UID: ref.UID},
			NodeAffinity: Share(pv.Spec.NodeAffinity),
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound},
	}
	if pv.Spec.CSI != nil {
		bound.Spec.CSI = Share(&corev1.CSIPersistentVolumeSource{Driver: pv.Spec.CSI.Driver})
	}
	return bound
}

// recent are parts of recent objects, by their JSON: tenants choose values, so other texts could be equal for different parts.
var recent = lru.New(1 << 13)

// maxShared is the maximum length of the JSON of a part that is shared, in bytes. Only a broken node has a larger list of resources.
const maxShared = 4 << 10

// textOf is the JSON of a part of the type.
type textOf[T any] string

// Share returns the equal part of an earlier object, so that the objects need less memory, or otherwise the part. The volumes of a zone, for
// example, have the same node affinity. The part must not be changed.
func Share[T any](part T) T {
	text, err := json.Marshal(part)
	if err != nil || len(text) > maxShared {
		return part
	}
	earlier, _ := recent.Get(textOf[T](text))
	if same, ok := earlier.(T); ok {
		return same
	}
	recent.Add(textOf[T](text), part)
	return part
}

// TrimNode trims CSINodes. It keeps the names and limits of the drivers, the in-tree
// plugins that were migrated to CSI, and the node that owns the object.
func TrimNode(node *storagev1.CSINode) *storagev1.CSINode {
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
	return trimmed
}
