// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/ephemeral"
	"k8s.io/component-helpers/storage/volume"
	csitranslation "k8s.io/csi-translation-lib"
)

// ClaimRef is a volume of a pod that refers to a PersistentVolumeClaim.
type ClaimRef struct {
	// Name of the claim, in the namespace of the pod.
	Name string
	// Ephemeral is the pod's volume if the claim is a generic ephemeral one, otherwise nil.
	Ephemeral *corev1.Volume
}

// IsExclusive returns whether only one pod may use the claim. A pod can also name the claim of another pod's ephemeral volume.
func IsExclusive(claim *corev1.PersistentVolumeClaim) bool {
	return slices.Contains(claim.Spec.AccessModes, corev1.ReadWriteOncePod)
}

// ClaimsOf lists the claims of the pod, each once, in the pod's order. A claim with an ephemeral and another volume is ephemeral. The caller
// owns the slice.
func ClaimsOf(pod *corev1.Pod) []ClaimRef {
	var refs []ClaimRef
	at := map[string]int{} // A pod can have thousands of volumes.
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		ref := ClaimRef{}
		switch {
		case v.PersistentVolumeClaim != nil:
			ref.Name = v.PersistentVolumeClaim.ClaimName
		case v.Ephemeral != nil:
			ref.Name, ref.Ephemeral = ephemeral.VolumeClaimName(pod, v), v
		default:
			continue
		}
		i, seen := at[ref.Name]
		switch {
		case !seen:
			at[ref.Name] = len(refs)
			refs = append(refs, ref)
		case ref.Ephemeral != nil:
			refs[i] = ref
		}
	}
	return refs
}

// IsBound is isPVCFullyBound of kube-scheduler. The phase is updated later and does not count.
func IsBound(claim *corev1.PersistentVolumeClaim) bool {
	return claim.Spec.VolumeName != "" && metav1.HasAnnotation(claim.ObjectMeta, volume.AnnBindCompleted)
}

// IsMigratable returns whether the volume is of an in-tree plugin that can be migrated to a CSI
// driver. The node's CSINode shows whether it is.
func IsMigratable(pv *corev1.PersistentVolume) bool {
	return csitranslation.New().IsPVMigratable(pv)
}

// IsMigrated returns whether the kubelet of the node has migrated the in-tree plugin to CSI. The node may be nil.
func IsMigrated(node *storagev1.CSINode, plugin string) bool {
	return node != nil && slices.Contains(strings.Split(node.Annotations[corev1.MigratedPluginsAnnotationKey], ","), plugin)
}
