// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/ephemeral"
	"k8s.io/component-helpers/storage/volume"
	csitranslation "k8s.io/csi-translation-lib"
	"k8s.io/csi-translation-lib/plugins"
	"k8s.io/klog/v2"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/volumes"
)

// usable checks that the pod may use the claim, which can be nil.
func (s snapshot) usable(u use) error {
	claim := u.claim
	switch {
	case claim == nil:
		return framework.Refuse(s.claimObject(u), "the claim does not exist").Advise("create it, or correct the pod")
	case metav1.HasAnnotation(claim.ObjectMeta, volumes.TooLarge):
		return framework.Refuse(framework.ObjectOf(claim), "the spec of the claim is too large for Prebind").Advise("use a shorter selector")
	case claim.DeletionTimestamp != nil:
		return framework.Refuse(framework.ObjectOf(claim), "the claim is being deleted").Advise("create it again after its deletion")
	case u.Ephemeral != nil && ephemeral.VolumeIsForPod(s.pod, claim) != nil:
		return framework.Refuse(framework.ObjectOf(claim), "the claim was not created for ephemeral volume %q of this pod", u.Ephemeral.Name).
			Advise("delete the claim, or rename the pod or its volume")
	case claim.Status.Phase == corev1.ClaimLost:
		return framework.Refuse(framework.ObjectOf(claim), "the claim lost its PersistentVolume %q", claim.Spec.VolumeName).
			Advise("restore the volume, or delete the claim")
	}
	return nil
}

func (s snapshot) claimObject(u use) framework.Object {
	return framework.Object{Kind: "PersistentVolumeClaim", Namespace: s.pod.Namespace, Name: u.Name}
}

// checkBound checks that the volume of a bound claim names the claim and can be used on
// the node.
func (s snapshot) checkBound(u use) error {
	claim, pv := u.claim, u.volume
	if pv == nil {
		return framework.Refuse(framework.ObjectOf(claim), "its PersistentVolume %s does not exist", claim.Spec.VolumeName).
			Advise("restore the volume, or delete the claim")
	}
	if !claimedBy(pv, claim) {
		return framework.Refuse(framework.ObjectOf(claim), "the claimRef of its PersistentVolume %s does not name the claim", pv.Name).
			Advise("correct the claimRef, or delete the claim")
	}
	if phase := pv.Status.Phase; phase == corev1.VolumeReleased || phase == corev1.VolumeFailed { // The claim in the cache is outdated.
		return framework.Refuse(framework.ObjectOf(pv), "the volume is %s, because the claim was deleted", phase).
			Advise("create the claim again, or use another one")
	}
	return s.checkAffinity(pv)
}

// checkDelayed checks that the binding mode of an unbound claim is WaitForFirstConsumer, and
// that no other node was selected for it.
func (s snapshot) checkDelayed(u use) error {
	claim, class := u.claim, u.class
	name := volume.GetPersistentVolumeClaimClass(claim)
	switch {
	case claim.Spec.VolumeName != "":
		return framework.Refuse(framework.ObjectOf(claim), "the claim requests PersistentVolume %s and is not bound to it yet", claim.Spec.VolumeName).
			Advise("wait until the claim is bound; see its events")
	case name != "" && class == nil:
		return framework.Refuse(framework.ObjectOf(claim), "the claim is not bound, and its StorageClass %s does not exist", name).
			Advise("create the class, or correct the claim")
	case class == nil || class.VolumeBindingMode == nil || *class.VolumeBindingMode != storagev1.VolumeBindingWaitForFirstConsumer:
		return framework.Refuse(framework.ObjectOf(claim), "the claim is not bound yet, and its volumeBindingMode is not WaitForFirstConsumer").
			Advise("wait until the claim is bound; see its events")
	}
	if chosen, ok := claim.Annotations[volume.AnnSelectedNode]; ok && chosen != s.node.Name {
		return framework.Refuse(framework.ObjectOf(claim), "its volume is being provisioned on node %s", chosen).
			Advise("bind the pod to %s, or delete the claim to start again", chosen)
	}
	return nil
}

// checkAffinity checks that the volume can be used on the node.
func (s snapshot) checkAffinity(pv *corev1.PersistentVolume) error {
	here, err := s.onNode(pv)
	if err != nil {
		return err
	}
	if err := volume.CheckNodeAffinity(here, s.node.Labels); err != nil {
		return framework.Refuse(framework.ObjectOf(pv), "its node affinity excludes node %s", s.node.Name).Because(err).
			Advise("choose a node that matches the volume's node affinity")
	}
	return nil
}

// onNode returns the volume with the node affinity that applies on the node: that of the CSI
// driver if the volume's in-tree plugin was migrated. It does not change the volume. It follows
// tryTranslatePVToCSI of kube-scheduler's VolumeBinding.
func (s snapshot) onNode(pv *corev1.PersistentVolume) (*corev1.PersistentVolume, error) {
	if !volumes.IsMigratable(pv) {
		return pv, nil
	}
	translator := csitranslation.New()
	plugin, err := translator.GetInTreePluginNameFromSpec(pv, nil)
	if err != nil || !translates(plugin) || !volumes.IsMigrated(s.csiNode, plugin) {
		return pv, nil //nolint:nilerr // A volume of an unknown plugin is not translated.
	}
	translated, err := translator.TranslateInTreePVToCSI(klog.Logger{}, pv)
	if err != nil {
		return nil, framework.Refuse(framework.ObjectOf(pv), "cannot translate the volume of in-tree plugin %s, which node %s migrated to CSI: %v",
			plugin, s.node.Name, err).Because(err).Advise("correct the volume")
	}
	here := *pv
	here.Spec.NodeAffinity = translated.Spec.NodeAffinity
	return &here, nil
}

// translates is isCSIMigrationOnForPlugin of kube-scheduler: it does not translate volumes of vSphere and Azure File.
func translates(plugin string) bool {
	switch plugin {
	case plugins.AWSEBSInTreePluginName, plugins.AzureDiskInTreePluginName, plugins.CinderInTreePluginName,
		plugins.GCEPDInTreePluginName, plugins.PortworxVolumePluginName:
		return true
	default:
		return false
	}
}

// describe names a claim in the middle of a sentence.
func describe(claim *corev1.PersistentVolumeClaim) string {
	return fmt.Sprintf("claim %s/%s", claim.Namespace, claim.Name)
}
